/* SPDX-License-Identifier: Apache-2.0 */
/* libnccl's double: collectives, registrations, operators, memory. Any thread. */
#include <cuda.h>
#include <string.h>

#include "tests/fakegpu/nccl_lib.h"

static uint64_t address(const void *pointer)
{
    return (uint64_t)(uintptr_t)pointer;
}

static ncclResult_t call_make(uint32_t kind, const void *send, void *recv, size_t count,
                              ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,
                              cudaStream_t stream)
{
    struct fgn_call call = {
        .kind = kind,
        .type = (uint32_t)type,
        .op = (uint32_t)op,
        .root = (uint32_t)root,
        .count = count,
        .send = address(send),
        .recv = address(recv),
        .stream = fg_stream(stream),
    };

    return group_call(comm, &call);
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return call_make(FGN_ALL_REDUCE, send, recv, count, type, op, 0, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return call_make(FGN_REDUCE_SCATTER, send, recv, count, type, op, 0, comm, stream);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return call_make(FGN_ALL_GATHER, send, recv, count, type, ncclSum, 0, comm, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    return call_make(FGN_BROADCAST, send, recv, count, type, ncclSum, root, comm, stream);
}

ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    return call_make(FGN_REDUCE, send, recv, count, type, op, root, comm, stream);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    return call_make(FGN_SEND, send, NULL, count, type, ncclSum, peer, comm, stream);
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return call_make(FGN_RECV, NULL, recv, count, type, ncclSum, peer, comm, stream);
}

/* ---- registrations and operators ------------------------------------------------------------- */

static ncclResult_t comm_register(struct ncclComm *comm, void *base, size_t bytes, uint64_t kind,
                                  void **ret_handle)
{
    ncclResult_t result = comm_check(comm);
    struct fg_reply reply;

    if (result != ncclSuccess)
        return result;
    if (!ret_handle)
        return nccl_error(ncclInvalidArgument, "ncclCommRegister: NULL");
    fg_note_sync("ncclCommRegister");
    comm_enter(comm, "ncclCommRegister");
    result = comm_ask(FGN_REGISTER, comm->number, address(base), bytes, kind, &reply);
    if (result == ncclSuccess)
        *ret_handle = (void *)(uintptr_t)reply.v[1];
    comm_leave(comm);
    return result;
}

static ncclResult_t comm_deregister(struct ncclComm *comm, void *handle)
{
    ncclResult_t result = comm_check(comm);
    struct fg_reply reply;

    if (result != ncclSuccess)
        return result;
    comm_enter(comm, "ncclCommDeregister");
    result = comm_ask(FGN_DEREGISTER, comm->number, address(handle), 0, 0, &reply);
    comm_leave(comm);
    return result;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *base, size_t bytes, void **ret_handle)
{
    return comm_register(comm, base, bytes, FGN_REGISTER_BUFFER, ret_handle);
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    return comm_deregister(comm, handle);
}

#ifndef FAKENCCL_OLD
/* All ranks together; the handle comes when that is over. */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *base, size_t bytes, ncclWindow_t *ret,
                                    int flags)
{
    void *handle = NULL;
    ncclResult_t result;

    if (!ret || address(base) % NCCL_WIN_REQUIRED_ALIGNMENT)
        return nccl_error(ncclInvalidArgument, "ncclCommWindowRegister: alignment");
    result = comm_register(
        comm, base, bytes,
        flags & NCCL_WIN_COLL_SYMMETRIC ? FGN_REGISTER_SYMMETRIC : FGN_REGISTER_WINDOW, &handle);
    if (result != ncclSuccess)
        return result;
    comm->window = handle;
    comm->window_to = ret;
    result = comm->blocking ? comm_wait(comm) : comm_state(comm);
    comm_window_given(comm, result);
    return result;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    return window ? comm_deregister(comm, window) : ncclSuccess;
}
#endif

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *ret_op, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm)
{
    ncclResult_t result = comm_check(comm);
    uint64_t value = address(scalar);
    struct fg_reply reply;

    if (result != ncclSuccess)
        return result;
    if (!ret_op || !scalar || (unsigned)type >= ncclNumTypes)
        return nccl_error(ncclInvalidArgument, "ncclRedOpCreatePreMulSum");
    if (residence == ncclScalarHostImmediate) {
        value = 0;
        memcpy(&value, scalar, fgn_type_bytes((uint32_t)type));
    }
    comm_enter(comm, "ncclRedOpCreatePreMulSum");
    result = comm_ask(FGN_PREMUL, comm->number, (uint64_t)type,
                      residence == ncclScalarHostImmediate, value, &reply);
    if (result == ncclSuccess)
        *ret_op = (ncclRedOp_t)reply.v[1];
    comm_leave(comm);
    return result;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    ncclResult_t result = comm_check(comm);
    struct fg_reply reply;

    if (result != ncclSuccess)
        return result;
    return comm_ask(FGN_PREMUL_FREE, comm->number, (uint64_t)op, 0, 0, &reply);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* As NCCL does: one exportable piece of virtual memory. */
ncclResult_t ncclMemAlloc(void **ret_pointer, size_t bytes)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location.type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr pointer = 0;
    size_t grain = 0;
    int device = 0;

    if (!ret_pointer || !bytes)
        return nccl_error(ncclInvalidArgument, "ncclMemAlloc");
    if (fg_current_gpu() < 0 || cudaGetDevice(&device) != cudaSuccess)
        return nccl_error(ncclUnhandledCudaError, "no CUDA device");
    prop.location.id = device;
    access.location = prop.location;
    if (cuMemGetAllocationGranularity(&grain, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
        return nccl_error(ncclUnhandledCudaError, "ncclMemAlloc");
    bytes = (bytes + grain - 1) / grain * grain;
    if (cuMemCreate(&handle, bytes, &prop, 0))
        return nccl_error(ncclUnhandledCudaError, "ncclMemAlloc of %zu bytes", bytes);
    if (cuMemAddressReserve(&pointer, bytes, grain, 0, 0) ||
        cuMemMap(pointer, bytes, 0, handle, 0) || cuMemSetAccess(pointer, bytes, &access, 1)) {
        cuMemRelease(handle);
        return nccl_error(ncclUnhandledCudaError, "ncclMemAlloc of %zu bytes", bytes);
    }
    cuMemRelease(handle); /* the mapping keeps it */
    *ret_pointer = (void *)(uintptr_t)pointer;
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *pointer)
{
    CUdeviceptr base = 0;
    size_t bytes = 0;

    if (!pointer)
        return ncclSuccess;
    if (cuMemGetAddressRange(&base, &bytes, (CUdeviceptr)(uintptr_t)pointer) ||
        cuMemUnmap(base, bytes) || cuMemAddressFree(base, bytes))
        return nccl_error(ncclUnhandledCudaError, "ncclMemFree");
    return ncclSuccess;
}
