/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --plot: size against bus bandwidth, both logarithmic, a panel for each dtype and number of ranks,
 * a curve for each system. Writes SVG; PNG is that, drawn by rsvg-convert. The coordinator's
 * thread.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/bench/output.h"
#include "client/bench/peer.h"

enum {
    WIDTH = 400, /* of a panel, with its axes */
    HEIGHT = 300,
    LEFT = 66,
    TOP = 34,
    RIGHT = 14,
    BOTTOM = 44,
    LEGEND = 150,
    CURVES = 16,
};

#define CONVERT "rsvg-convert"
#define CONVERT_NS 60000000000ull

/* Colours that colour-blind readers tell apart (Okabe and Ito); the limit is no competitor. */
static const struct look {
    const char *system, *colour, *dash;
} looks[] = {
    {"limit", "#555555", "5,4"}, {"gradwire", "#d55e00", ""}, {"mpich", "#0072b2", ""},
    {"openmpi", "#56b4e9", ""},  {"impi", "#009e73", ""},     {"oneccl", "#cc79a7", ""},
    {"gloo", "#e69f00", ""},
};

/* One system's points in one panel, by size. */
struct curve {
    const struct bench_row *points[BENCH_LIST];
    uint32_t count;
};

struct plot {
    FILE *file;
    const struct bench_options *options;
    const struct bench_row *rows;
    size_t rows_count;
    double x_first, x_last;       /* log2 of bytes */
    double y_first, y_last;       /* log10 of GB/s, whole */
    const char *drawn[CURVES][2]; /* system and variant of each curve, for the legend */
    uint32_t drawn_count;
};

static bool ends_in(const char *path, const char *suffix)
{
    size_t length = strlen(path), end = strlen(suffix);

    return length > end && strcmp(path + length - end, suffix) == 0;
}

int plot_check(const char *path)
{
    if (ends_in(path, ".svg") || (ends_in(path, ".png") && peer_in_path(CONVERT)))
        return 0;
    if (ends_in(path, ".png"))
        fprintf(stderr,
                "gwbench: --plot %s: a PNG wants " CONVERT " (Debian: librsvg2-bin); name "
                "a file that ends in .svg\n",
                path);
    else
        fprintf(stderr, "gwbench: --plot %s: must end in .svg or .png\n", path);
    return EX_USAGE;
}

/* ---- scales ---------------------------------------------------------------------------------- */

static bool is_drawn(const struct bench_row *row)
{
    return !isnan(row->busbw_gbs) && row->busbw_gbs > 0.0;
}

static void find_scales(struct plot *plot)
{
    double x_least = INFINITY, x_most = -INFINITY, y_least = INFINITY, y_most = -INFINITY;

    for (size_t i = 0; i < plot->rows_count; i++) {
        const struct bench_row *row = &plot->rows[i];

        if (!is_drawn(row))
            continue;
        x_least = fmin(x_least, log2((double)row->what.bytes));
        x_most = fmax(x_most, log2((double)row->what.bytes));
        y_least = fmin(y_least, log10(row->busbw_gbs));
        y_most = fmax(y_most, log10(row->busbw_gbs));
    }
    plot->x_first = floor(x_least) - 0.5;
    plot->x_last = ceil(x_most) + 0.5;
    plot->y_first = floor(y_least);
    plot->y_last = fmax(ceil(y_most), plot->y_first + 1.0);
}

static double x_of(const struct plot *plot, double bytes)
{
    double part = (log2(bytes) - plot->x_first) / (plot->x_last - plot->x_first);

    return LEFT + part * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct plot *plot, double gbs)
{
    double part = (log10(gbs) - plot->y_first) / (plot->y_last - plot->y_first);

    return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM);
}

/* 4096: "4K". Of sizes that are no whole number of a unit, what is nearest. */
static void size_text(uint64_t bytes, char *text, size_t text_bytes)
{
    static const char units[] = " KMG";
    uint32_t unit = 0;
    double value = (double)bytes;

    while (value >= 1024.0 && unit < 3) {
        value /= 1024.0;
        unit++;
    }
    (void)snprintf(text, text_bytes, "%.3g%.*s", value, unit > 0, units + unit);
}

/* ---- a panel --------------------------------------------------------------------------------- */

static void line(const struct plot *plot, double x1, double y1, double x2, double y2,
                 const char *colour)
{
    fprintf(plot->file, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n",
            x1, y1, x2, y2, colour);
}

static void text(const struct plot *plot, double x, double y, const char *anchor, const char *what)
{
    fprintf(plot->file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor,
            what);
}

static void draw_axes(const struct plot *plot, const char *title)
{
    char label[32];

    text(plot, WIDTH / 2.0, 20, "middle", title);
    for (double decade = plot->y_first; decade <= plot->y_last; decade++) {
        double y = y_of(plot, pow(10.0, decade));

        line(plot, LEFT, y, WIDTH - RIGHT, y, "#dddddd");
        (void)snprintf(label, sizeof label, "%g", pow(10.0, decade));
        text(plot, LEFT - 6, y + 4, "end", label);
    }
    for (uint32_t i = 0; i < plot->options->sizes_count; i++) {
        double x = x_of(plot, (double)plot->options->sizes[i]);

        line(plot, x, TOP, x, HEIGHT - BOTTOM, "#eeeeee");
        size_text(plot->options->sizes[i], label, sizeof label);
        text(plot, x, HEIGHT - BOTTOM + 16, "middle", label);
    }
    line(plot, LEFT, TOP, LEFT, HEIGHT - BOTTOM, "#000000");
    line(plot, LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, "#000000");
    text(plot, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 8, "middle", "bytes");
    fprintf(plot->file,
            "<text transform=\"translate(12,%d) rotate(-90)\" text-anchor=\"middle\">"
            "bus bandwidth, GB/s</text>\n",
            (TOP + HEIGHT - BOTTOM) / 2);
}

static const struct look *look_of(const char *system)
{
    size_t i = 0;

    while (i + 1 < sizeof looks / sizeof looks[0] && strcmp(looks[i].system, system) != 0)
        i++;
    return &looks[i];
}

/* Other variants of a system are thinner. */
static double stroke(enum bench_variant variant, enum bench_variant first)
{
    return variant == first ? 2.0 : 2.0 / (1.0 + 0.3 * (double)(variant - first));
}

static void draw_curve(const struct plot *plot, const struct curve *curve)
{
    const struct bench_row *row = curve->points[0];
    const struct look *look = look_of(row->system);

    fprintf(plot->file,
            "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%.1f\" "
            "stroke-dasharray=\"%s\" points=\"",
            look->colour, stroke(row->what.variant, bench_ops[row->what.op].first), look->dash);
    for (uint32_t i = 0; i < curve->count; i++)
        fprintf(plot->file, "%s%.1f,%.1f", i > 0 ? " " : "",
                x_of(plot, (double)curve->points[i]->what.bytes),
                y_of(plot, curve->points[i]->busbw_gbs));
    fprintf(plot->file, "\"/>\n");
    for (uint32_t i = 0; i < curve->count; i++)
        fprintf(plot->file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" fill=\"%s\"/>\n",
                x_of(plot, (double)curve->points[i]->what.bytes),
                y_of(plot, curve->points[i]->busbw_gbs), look->colour);
}

static bool same_curve(const struct bench_row *a, const struct bench_row *b)
{
    return strcmp(a->system, b->system) == 0 && a->what.variant == b->what.variant &&
           a->what.dtype == b->what.dtype && a->what.ranks == b->what.ranks;
}

static void add_point(struct curve *curve, const struct bench_row *row)
{
    uint32_t at = curve->count;

    if (curve->count == BENCH_LIST)
        return;
    for (; at > 0 && curve->points[at - 1]->what.bytes > row->what.bytes; at--)
        curve->points[at] = curve->points[at - 1];
    curve->points[at] = row;
    curve->count++;
}

static void remember(struct plot *plot, const struct bench_row *row)
{
    const char *variant = bench_variant_names[row->what.variant];

    for (uint32_t i = 0; i < plot->drawn_count; i++) {
        if (strcmp(plot->drawn[i][0], row->system) == 0 && plot->drawn[i][1] == variant)
            return;
    }
    if (plot->drawn_count == CURVES)
        return;
    plot->drawn[plot->drawn_count][0] = row->system;
    plot->drawn[plot->drawn_count++][1] = variant;
}

static void draw_panel(struct plot *plot, uint32_t dtype, uint64_t ranks)
{
    char title[96];

    (void)snprintf(title, sizeof title, "%s of %s, %llu ranks", bench_ops[plot->options->op].name,
                   bench_dtype_names[dtype], (unsigned long long)ranks);
    draw_axes(plot, title);
    for (size_t i = 0; i < plot->rows_count; i++) {
        const struct bench_row *row = &plot->rows[i];
        struct curve curve = {.count = 0};
        bool first = true;

        if (row->what.dtype != dtype || row->what.ranks != ranks || !is_drawn(row))
            continue;
        for (size_t j = 0; j < plot->rows_count; j++) {
            if (!same_curve(row, &plot->rows[j]) || !is_drawn(&plot->rows[j]))
                continue;
            first = first && j >= i;
            add_point(&curve, &plot->rows[j]);
        }
        if (!first)
            continue;
        draw_curve(plot, &curve);
        remember(plot, row);
    }
}

static void draw_legend(const struct plot *plot, double x)
{
    for (uint32_t i = 0; i < plot->drawn_count; i++) {
        const struct look *look = look_of(plot->drawn[i][0]);
        double y = TOP + 10 + 20.0 * i;
        char label[64];

        fprintf(plot->file,
                "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
                "stroke-width=\"2\" stroke-dasharray=\"%s\"/>\n",
                x, y, x + 26, y, look->colour, look->dash);
        (void)snprintf(label, sizeof label, "%s%s%s", plot->drawn[i][0],
                       plot->drawn[i][1] ? ", " : "", plot->drawn[i][1] ? plot->drawn[i][1] : "");
        text(plot, x + 34, y + 4, "start", label);
    }
}

/* ---- the file -------------------------------------------------------------------------------- */

static void draw(struct plot *plot)
{
    const struct bench_options *o = plot->options;
    uint32_t width = WIDTH * o->ranks_count + LEGEND, height = HEIGHT * o->dtypes_count;

    fprintf(plot->file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%u\" height=\"%u\" "
            "viewBox=\"0 0 %u %u\" font-family=\"sans-serif\" font-size=\"12\">\n"
            "<rect width=\"%u\" height=\"%u\" fill=\"#ffffff\"/>\n",
            width, height, width, height, width, height);
    for (uint32_t row = 0; row < o->dtypes_count; row++) {
        for (uint32_t column = 0; column < o->ranks_count; column++) {
            fprintf(plot->file, "<g transform=\"translate(%u,%u)\">\n", WIDTH * column,
                    HEIGHT * row);
            draw_panel(plot, o->dtypes[row], o->ranks[column]);
            fprintf(plot->file, "</g>\n");
        }
    }
    draw_legend(plot, (double)(WIDTH * o->ranks_count) + 8.0);
    fprintf(plot->file, "</svg>\n");
}

static int write_svg(const struct bench_options *options, const char *path)
{
    struct plot plot = {.options = options};
    bool written;

    plot.rows = output_rows(&plot.rows_count);
    find_scales(&plot);
    plot.file = fopen(path, "we");
    if (plot.file != NULL)
        draw(&plot);
    written = plot.file != NULL && !ferror(plot.file);
    if (plot.file != NULL)
        written = fclose(plot.file) == 0 && written;
    if (written)
        return 0;
    fprintf(stderr, "gwbench: cannot write the plot %s: %s\n", path, strerror(errno));
    return EX_CANTCREAT;
}

int plot_write(const struct bench *bench)
{
    const char *path = bench->options.plot;
    char svg[PEER_PATH_BYTES], out[PEER_PATH_BYTES];
    int r;

    if (ends_in(path, ".svg"))
        return write_svg(&bench->options, path);
    (void)snprintf(svg, sizeof svg, "%s/plot.svg", bench->directory);
    (void)snprintf(out, sizeof out, "%s/plot.out", bench->directory);
    r = write_svg(&bench->options, svg);
    if (r == 0 && peer_run((const char *const[]){CONVERT, "-o", path, svg, NULL}, bench->directory,
                           NULL, out, CONVERT_NS) != 0) {
        peer_tell(CONVERT, out);
        fprintf(stderr, "gwbench: cannot write the plot %s\n", path);
        r = EX_CANTCREAT;
    }
    return r;
}
