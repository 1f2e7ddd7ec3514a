// SPDX-License-Identifier: Apache-2.0
// gwbench's peer oneCCL: its collectives, called by peer_mpi.c, which does the rest. Host memory.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include <mpi.h>
#include <oneapi/ccl.hpp>

namespace
{

std::unique_ptr<ccl::communicator> comm;

ccl::datatype type_of(int type)
{
    return type == 0   ? ccl::datatype::float32
           : type == 1 ? ccl::datatype::float16
                       : ccl::datatype::bfloat16;
}

} // namespace

extern "C" const char *peer_oneccl_begin(int rank, int ranks)
{
    static char version[64];
    ccl::kvs::address_type address;
    ccl::shared_ptr_class<ccl::kvs> kvs;

    ccl::init();
    if (rank == 0) {
        kvs = ccl::create_main_kvs();
        address = kvs->get_address();
    }
    MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank != 0)
        kvs = ccl::create_kvs(address);
    comm = std::make_unique<ccl::communicator>(ccl::create_communicator(ranks, rank, kvs));
    const ccl::library_version v = ccl::get_library_version();
    std::snprintf(version, sizeof version, "oneCCL %u.%u.%u", v.major, v.minor, v.update);
    return version;
}

extern "C" int peer_oneccl(int op, int type, const void *send, void *recv, uint64_t count)
{
    const ccl::datatype dtype = type_of(type);

    if (op == 0)
        ccl::reduce_scatter(send, recv, count, dtype, ccl::reduction::sum, *comm).wait();
    else if (op == 1)
        ccl::allgather(send, recv, count, dtype, *comm).wait();
    else
        ccl::allreduce(send, recv, count, dtype, ccl::reduction::sum, *comm).wait();
    return 0;
}

extern "C" void peer_oneccl_end(void)
{
    comm.reset();
}
