# SPDX-License-Identifier: Apache-2.0
"""Parameter lists of public architectures: rows of (name, shape, unit), written from their papers'
and configurations' sizes; nothing of any weights."""


def rows_of(name, unit, parts):
    return [(f"{name}.{part}", shape, unit) for part, shape in parts]


def both(name, bias, *weight):
    """A weight and its bias of `bias` elements."""
    return [(f"{name}.weight", weight or (bias,)), (f"{name}.bias", (bias,))]


def gpt2(hidden, vocabulary, positions, layers=1):
    h = hidden
    rows = [("wte.weight", (vocabulary, h), "embed"), ("wpe.weight", (positions, h), "embed")]
    for n in range(layers):
        rows += rows_of(f"h.{n}", f"h.{n}", [
            *both("ln_1", h), *both("attn.c_attn", 3 * h, h, 3 * h), *both("attn.c_proj", h, h, h),
            *both("ln_2", h), *both("mlp.c_fc", 4 * h, h, 4 * h), *both("mlp.c_proj", h, 4 * h, h)])
    return rows + rows_of("ln_f", "ln_f", [("weight", (h,)), ("bias", (h,))])


def neox(hidden, vocabulary, layers, split=1):
    """`split`: the rows or columns that one of so many tensor-parallel ranks holds."""
    h, part = hidden, hidden // split
    table = [("weight", (vocabulary // split, h))]
    norm = [("weight", (h,)), ("bias", (h,))]
    rows = rows_of("embed_in", "embed_in", table)
    for n in range(layers):
        rows += rows_of(f"layers.{n}", f"layers.{n}", [
            *both("input_layernorm", h), *both("post_attention_layernorm", h),
            *both("attention.query_key_value", 3 * part, 3 * part, h),
            *both("attention.dense", h, h, part),
            *both("mlp.dense_h_to_4h", 4 * part, 4 * part, h),
            *both("mlp.dense_4h_to_h", h, h, 4 * part)])
    return (rows + rows_of("final_layer_norm", "final_layer_norm", norm)
            + rows_of("embed_out", "embed_out", table))


def roberta(hidden, vocabulary, positions, layers):
    h = hidden
    rows = rows_of("embeddings", "embeddings", [
        ("word_embeddings.weight", (vocabulary, h)),
        ("position_embeddings.weight", (positions, h)),
        ("token_type_embeddings.weight", (1, h)), *both("LayerNorm", h)])
    for n in range(layers):
        rows += rows_of(f"layer.{n}", f"layer.{n}", [
            *both("attention.self.query", h, h, h), *both("attention.self.key", h, h, h),
            *both("attention.self.value", h, h, h), *both("attention.output.dense", h, h, h),
            *both("attention.output.LayerNorm", h), *both("intermediate.dense", 4 * h, 4 * h, h),
            *both("output.dense", h, h, 4 * h), *both("output.LayerNorm", h)])
    return rows + rows_of("lm_head", "lm_head", [
        *both("dense", h, h, h), *both("layer_norm", h), ("bias", (vocabulary,))])


KNOWN = {
    "gpt2-345m-1layer": gpt2(1024, 50304, 1024),
    "gpt2-345m": gpt2(1024, 50304, 1024, 24),
    "neox-2.7b": neox(2560, 50304, 32),
    "neox-65b-tp8": neox(8192, 50688, 80, split=8),
    "roberta-10b": roberta(5120, 50265, 512, 30),
}
