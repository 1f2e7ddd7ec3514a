/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What gwctl doctor is told of GPUs. Runs in a process of its own, on one thread; makes contexts,
 * which end with it. Touches nothing of the device table.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <errno.h>
#include <nccl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/device/cuda/driver.h"
#include "daemon/device/cuda/probe.h"
#include "daemon/fabric/nccl/nccl.h"

#define GPUS_ADVICE                                                                                \
    "nvidia-smi shows what the driver sees; in a unit, no PrivateDevices=; in a container, pass "  \
    "the GPUs in; CUDA_VISIBLE_DEVICES may hide them"

struct probe {
    plugin_point *point;
    void *user;
    int gpus;
};

static void __attribute__((format(printf, 5, 6))) say(const struct probe *probe, const char *name,
                                                      enum plugin_verdict verdict,
                                                      const char *advice, const char *format, ...)
{
    char found[GW_TEXT_MAX + 1];
    va_list list;

    va_start(list, format);
    vsnprintf(found, sizeof(found), format, list);
    va_end(list);
    probe->point(probe->user, name, verdict, found, advice);
}

static const char *error_text(cudaError_t error)
{
    return cudaGetErrorString(error);
}

/* The symbol of this version, or NULL. */
static void *driver_symbol(const char *name)
{
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    void *symbol = NULL;

    if (cudaGetDriverEntryPointByVersion(name, &symbol, GW_CUDA_ABI, cudaEnableDefault,
                                         &result) != cudaSuccess ||
        result != cudaDriverEntryPointSuccess)
        return NULL;
    return symbol;
}

/* ---- libraries ------------------------------------------------------------------------------- */

static bool look_at_driver(struct probe *probe)
{
    int driver = 0, runtime = 0;
    cudaError_t r;

    (void)cudaRuntimeGetVersion(&runtime);
    r = cudaDriverGetVersion(&driver);
    if (r != cudaSuccess || driver == 0) { /* as on every node without GPUs */
        say(probe, "GPUs", PLUGIN_NOTE,
            "for jobs on GPUs install NVIDIA's driver, 580 or newer; in a container, pass GPUs and "
            "driver in",
            "no NVIDIA driver here: this node runs host jobs");
        return false;
    }
    if (driver < GW_CUDA_ABI)
        say(probe, "GPU driver", PLUGIN_BAD, "install driver 580 or newer",
            "it does CUDA %d.%d, gradwire needs 13.0", driver / 1000, driver % 1000 / 10);
    else
        say(probe, "GPU driver", PLUGIN_GOOD, NULL, "does CUDA %d.%d; runtime %d.%d",
            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    return driver >= GW_CUDA_ABI;
}

static void look_at_nccl(struct probe *probe)
{
    struct nccl_library library = {0};
    char text[GW_TEXT_MAX + 1];
    int version;

    if (nccl_library_find(&library, text) < 0) {
        say(probe, "NCCL", PLUGIN_BAD, "install NCCL 2.28 or newer", "%s", text);
        return;
    }
    version = library.version;
    say(probe, "NCCL", library.zero_cta ? PLUGIN_GOOD : PLUGIN_NOTE,
        library.zero_cta ? NULL
                         : "it lacks ncclCommWindowRegister: small all-gathers take SMs, which a "
                           "newer one does without",
        "%d.%d.%d", version / 10000, version % 10000 / 100, version % 100);
}

static bool count_gpus(struct probe *probe)
{
    cudaError_t r = cudaGetDeviceCount(&probe->gpus);

    if (r == cudaSuccess && probe->gpus > 0)
        return true;
    if (r == cudaSuccess || r == cudaErrorNoDevice)
        say(probe, "GPUs", PLUGIN_NOTE, GPUS_ADVICE,
            "the driver has none for this process: this node runs host jobs");
    else
        say(probe, "GPUs", PLUGIN_BAD, GPUS_ADVICE, "none can be used: %s", error_text(r));
    return false;
}

/* ---- sharing --------------------------------------------------------------------------------- */

static void look_at_mps(struct probe *probe)
{
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[512];

    snprintf(path, sizeof(path), "%s/control", directory ? directory : "/tmp/nvidia-mps");
    if (access(path, F_OK) == 0)
        say(probe, "MPS", PLUGIN_NOTE,
            "engines use the CUDA_MPS_PIPE_DIRECTORY that gradwired was started with, not a "
            "trainer's own: set the same in the unit and for trainers, or their kernels take "
            "turns; a GPU fault of one process ends all that share the GPU, other jobs included",
            "on (%s): kernels of gradwire and of the trainer run side by side", path);
    else
        say(probe, "MPS", PLUGIN_NOTE,
            "start nvidia-cuda-mps-control -d for the job's user if hidden_fraction stays low: "
            "kernels of two processes take turns without it, copies may overlap; with a "
            "CUDA_MPS_PIPE_DIRECTORY, gradwired and trainers need the same one",
            "off (no %s)", path);
}

static void look_at_peermem(struct probe *probe)
{
    bool peermem = access("/sys/module/nvidia_peermem", F_OK) == 0;
    bool gdrcopy = access("/dev/gdrdrv", F_OK) == 0;

    say(probe, "GPUDirect RDMA", peermem ? PLUGIN_GOOD : PLUGIN_NOTE,
        peermem ? NULL : "matters between nodes only: modprobe nvidia_peermem (or DMA-BUF, which "
                         "needs none)",
        "nvidia_peermem is %s, gdrcopy is %s", peermem ? "loaded" : "not loaded",
        gdrcopy ? "there" : "not there");
}

/* ---- one GPU --------------------------------------------------------------------------------- */

static int attribute(int gpu, enum cudaDeviceAttr which)
{
    int value = 0;

    return cudaDeviceGetAttribute(&value, which, gpu) == cudaSuccess ? value : 0;
}

static void look_at_mode(const struct probe *probe, int gpu, const char *name)
{
    int mode = attribute(gpu, cudaDevAttrComputeMode);

    if (mode == cudaComputeModeProhibited)
        say(probe, name, PLUGIN_BAD, "nvidia-smi -c DEFAULT",
            "compute mode: prohibited, no process may use it");
    else if (mode != cudaComputeModeExclusiveProcess)
        say(probe, name, PLUGIN_GOOD, NULL, "compute mode: default");
    else if (attribute(gpu, cudaDevAttrMpsEnabled))
        say(probe, name, PLUGIN_GOOD, NULL,
            "compute mode: exclusive process, which is that of MPS for gradwire and trainers");
    else
        say(probe, name, PLUGIN_WARN,
            "gradwire and the trainer are two processes on one GPU: nvidia-smi -c DEFAULT, or MPS",
            "compute mode: exclusive process, a second one's context is refused");
}

/* What ordering between processes rests on. */
static void look_at_stream_memory(const struct probe *probe, int gpu, const char *name)
{
    CUresult (*get)(int *, CUdevice_attribute, CUdevice);
    int words = 0, events = 0;

    *(void **)&get = driver_symbol("cuDeviceGetAttribute");
    if (get) {
        (void)get(&words, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, gpu);
        (void)get(&events, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, gpu);
    }
    if (words)
        say(probe, name, PLUGIN_GOOD, NULL,
            "streams of two processes wait for words (64-bit stream memory operations)");
    else if (events)
        say(probe, name, PLUGIN_WARN,
            "a GPU and driver that have them are faster: here the trainer's host waits for what "
            "its streams would, and a reduction begins up to half a millisecond after its "
            "gradients, never enqueued ahead; trainer and service must see one /dev/shm "
            "(containers: --ipc=host)",
            "no 64-bit stream memory operations: interprocess events are used instead");
    else
        say(probe, name, PLUGIN_BAD, "use a GPU and driver that have one of the two",
            "neither 64-bit stream memory operations nor interprocess events");
}

/* Kernels raise words that hosts raise too. */
static void look_at_atomics(const struct probe *probe, int gpu, const char *name)
{
    bool native = attribute(gpu, cudaDevAttrHostNativeAtomicSupported) != 0;

    say(probe, name, native ? PLUGIN_GOOD : PLUGIN_NOTE,
        native ? NULL
               : "usual over PCIe: gradwire raises the words of an ended job more than once for it",
        "a kernel's atomics on host memory are %satomic to the CPU", native ? "" : "not ");
}

static bool export_fd(int gpu)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu}};
    CUresult (*granularity)(size_t *, const CUmemAllocationProp *,
                            CUmemAllocationGranularity_flags);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                       unsigned long long);
    CUresult (*export)(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                       unsigned long long);
    CUresult (*release)(CUmemGenericAllocationHandle);
    CUmemGenericAllocationHandle handle;
    size_t bytes = 0;
    int fd = -1;
    bool good;

    *(void **)&granularity = driver_symbol("cuMemGetAllocationGranularity");
    *(void **)&create = driver_symbol("cuMemCreate");
    *(void **)&export = driver_symbol("cuMemExportToShareableHandle");
    *(void **)&release = driver_symbol("cuMemRelease");
    if (!granularity || !create || !export || !release ||
        granularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS ||
        create(&handle, bytes, &prop, 0) != CUDA_SUCCESS)
        return false;
    good = export(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS;
    if (good)
        close(fd);
    (void)release(handle);
    return good;
}

static bool export_ipc(void)
{
    cudaIpcMemHandle_t handle;
    void *memory = NULL;
    bool good;

    if (cudaMalloc(&memory, 1 << 20) != cudaSuccess)
        return false;
    good = cudaIpcGetMemHandle(&handle, memory) == cudaSuccess;
    (void)cudaFree(memory);
    return good;
}

/* Two points: each may fail alone. */
static void look_at_export(const struct probe *probe, int gpu)
{
    char name[GW_LABEL_MAX + 1];

    snprintf(name, sizeof(name), "GPU %d descriptors", gpu);
    if (export_fd(gpu))
        say(probe, name, PLUGIN_GOOD, NULL, "memory is exported as one");
    else
        say(probe, name, PLUGIN_BAD,
            "gradwire's own GPU memory reaches trainers as descriptors: newer driver, no vGPU "
            "profile that forbids it",
            "memory cannot be exported as a descriptor");
    snprintf(name, sizeof(name), "GPU %d IPC", gpu);
    if (export_ipc())
        say(probe, name, PLUGIN_GOOD, NULL, "memory is exported by CUDA IPC");
    else
        say(probe, name, PLUGIN_WARN,
            "trainers' own memory is then copied through a staging buffer: share the PID "
            "namespace, or take buffers from gradwire",
            "memory cannot be exported by CUDA IPC");
}

static void look_at_gpu(struct probe *probe, int gpu)
{
    char device[256] = "?", name[GW_LABEL_MAX + 1];
    struct cudaDeviceProp properties;
    size_t free_bytes = 0, bytes = 0;
    cudaError_t r;

    if (cudaGetDeviceProperties(&properties, gpu) == cudaSuccess)
        snprintf(device, sizeof(device), "%s", properties.name);
    r = cudaSetDevice(gpu);
    if (r == cudaSuccess)
        r = cudaMemGetInfo(&free_bytes, &bytes); /* makes the context */
    snprintf(name, sizeof(name), "GPU %d", gpu);
    if (r != cudaSuccess)
        say(probe, name, PLUGIN_BAD, "nvidia-smi shows who uses it, and its compute mode",
            "%s: no context: %s", device, error_text(r));
    else
        say(probe, name, PLUGIN_GOOD, NULL, "%s, %.1f of %.1f GiB free, sm_%d%d, %d copy engines",
            device, (double)free_bytes / (1 << 30), (double)bytes / (1 << 30),
            attribute(gpu, cudaDevAttrComputeCapabilityMajor),
            attribute(gpu, cudaDevAttrComputeCapabilityMinor),
            attribute(gpu, cudaDevAttrAsyncEngineCount));
    snprintf(name, sizeof(name), "GPU %d mode", gpu);
    look_at_mode(probe, gpu, name);
    if (r != cudaSuccess)
        return;
    snprintf(name, sizeof(name), "GPU %d streams", gpu);
    look_at_stream_memory(probe, gpu, name);
    snprintf(name, sizeof(name), "GPU %d atomics", gpu);
    look_at_atomics(probe, gpu, name);
    look_at_export(probe, gpu);
    (void)cudaDeviceReset();
}

/* ---- all of it ------------------------------------------------------------------------------- */

void cuda_doctor(plugin_point *point, void *user)
{
    struct probe probe = {.point = point, .user = user};
    bool good = look_at_driver(&probe);

    look_at_nccl(&probe);
    if (!good || !count_gpus(&probe))
        return;
    look_at_mps(&probe);
    look_at_peermem(&probe);
    for (int gpu = 0; gpu < probe.gpus && gpu < PROBE_GPUS_MAX; gpu++)
        look_at_gpu(&probe, gpu);
    cuda_doctor_peers(point, user, probe.gpus);
}
