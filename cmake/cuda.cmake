# SPDX-License-Identifier: Apache-2.0
#
# CUDA and NCCL. How a folder's CMakeLists.txt uses it:
#   gw_kernel_shim(fabric fabric.cu) the CPU build of a kernel file, CUDA or not: target fabric_cpu,
#                                    file <build>/lib/libfabric-cpu.so. gw_kernels_cpu is there
#                                    already, of daemon/device/cuda/kernels.cu
#   if(GW_HAVE_CUDA)                 toolkit 13 and NCCL are there; false: make no such target
#     add_library(x MODULE a.c)
#     gw_cuda_object(x cuda/kernels.cu)      compiles with nvcc, adds the object to x; and makes
#                                    <build>/lib/kernels.ptx
#     target_link_libraries(x PRIVATE gw::cudart gw::nccl)   by full path; C needs no more
#     target_link_libraries(y PRIVATE gw::cuda_headers gw::nccl_headers)   headers only
#   endif()
# -DGW_CUDA=AUTO|ON|OFF: AUTO builds without when something is missing, ON stops then.
# -DGW_CUDA_ROOT=, -DGW_NCCL_ROOT=: where they are; else installed ones, else ../cuda-wheels beside
# the build directory (cmake/cuda-wheels.sh brings it).
# CMake's CUDA language is not used: it links test programs, which the wheels cannot.

set(GW_CUDA AUTO CACHE STRING "CUDA and NCCL: AUTO, ON or OFF")
set_property(CACHE GW_CUDA PROPERTY STRINGS AUTO ON OFF)
set(GW_CUDA_ROOT "" CACHE PATH "CUDA toolkit 13, or empty: found")
set(GW_NCCL_ROOT "" CACHE PATH "NCCL >= 2.28 (include, lib), or empty: found")
get_filename_component(GW_CUDA_WHEELS ${CMAKE_BINARY_DIR}/../cuda-wheels ABSOLUTE)
set(GW_CUDA_LIB_DIR ${CMAKE_BINARY_DIR}/lib)

set(GW_HAVE_CUDA OFF)
if(GW_CUDA STREQUAL "OFF")
  message(STATUS "CUDA: off (GW_CUDA)")
else()
  include(${CMAKE_CURRENT_LIST_DIR}/cuda-find.cmake)
  set(missing)
  if(NOT GW_CUDA_NVCC)
    list(APPEND missing "CUDA toolkit 13 (nvcc, headers, libcudart.so.13)")
  endif()
  if(NOT GW_NCCL_LIBRARY)
    list(APPEND missing "NCCL >= 2.28 (nccl.h, libnccl.so.2)")
  endif()
  list(JOIN missing " and " missing)
  if(NOT missing)
    set(GW_HAVE_CUDA ON)
    message(STATUS "CUDA: ${GW_CUDA_VERSION} (${GW_CUDA_NVCC}), "
                   "NCCL ${GW_NCCL_VERSION} (${GW_NCCL_LIBRARY})")
  elseif(GW_CUDA STREQUAL "AUTO")
    message(STATUS "CUDA: no plug-in is built, missing: ${missing}. "
                   "cmake/cuda-wheels.sh brings both")
  else()
    message(FATAL_ERROR "GW_CUDA=${GW_CUDA}, missing: ${missing}. Install it, name its directory "
                        "by GW_CUDA_ROOT or GW_NCCL_ROOT, or run cmake/cuda-wheels.sh "
                        "${GW_CUDA_WHEELS}")
  endif()
endif()

if(GW_HAVE_CUDA)
  add_library(gw::cuda_headers INTERFACE IMPORTED GLOBAL)
  set_target_properties(gw::cuda_headers PROPERTIES
                        INTERFACE_INCLUDE_DIRECTORIES ${GW_CUDA_INCLUDE})
  add_library(gw::nccl_headers INTERFACE IMPORTED GLOBAL)
  set_target_properties(gw::nccl_headers PROPERTIES
                        INTERFACE_INCLUDE_DIRECTORIES ${GW_NCCL_INCLUDE}
                        INTERFACE_LINK_LIBRARIES gw::cuda_headers)
  # The wheels hold no libcudart.so link: the files by their full path. RUNPATH, not RPATH, so that
  # LD_LIBRARY_PATH can put others before them.
  foreach(pair cudart=${GW_CUDA_CUDART} nccl=${GW_NCCL_LIBRARY})
    string(REGEX REPLACE "=.*" "" library ${pair})
    string(REGEX REPLACE "^[a-z]*=" "" path ${pair})
    add_library(gw::${library} SHARED IMPORTED GLOBAL)
    set_target_properties(gw::${library} PROPERTIES IMPORTED_LOCATION ${path}
                          INTERFACE_LINK_OPTIONS "-Wl,--enable-new-dtags")
  endforeach()
  set_target_properties(gw::cudart PROPERTIES IMPORTED_SONAME libcudart.so.13
                        INTERFACE_LINK_LIBRARIES gw::cuda_headers)
  set_target_properties(gw::nccl PROPERTIES IMPORTED_SONAME libnccl.so.2
                        INTERFACE_LINK_LIBRARIES gw::nccl_headers)
endif()

# Bits are promised: nothing is contracted, on either side.
set(GW_NVCC_FLAGS -std=c++17 -O3 -fmad=false -I${CMAKE_SOURCE_DIR} -I${CMAKE_SOURCE_DIR}/include)
set(GW_NVCC_HOST_FLAGS
    -Xcompiler=-fPIC,-ffp-contract=off,-fvisibility=hidden,-fno-exceptions,-fno-rtti)
# Guards of statics would need libstdc++; the stubs that have them are never called.
list(APPEND GW_NVCC_HOST_FLAGS -Xcompiler=-fno-threadsafe-statics)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  list(APPEND GW_NVCC_HOST_FLAGS -ccbin=${CMAKE_C_COMPILER})
endif()

# Target <name>_ptx: <build>/lib/<name>.ptx, for the tests that read it.
function(gw_cuda_ptx file)
  get_filename_component(name ${file} NAME_WE)
  get_filename_component(source ${file} ABSOLUTE)
  if(TARGET ${name}_ptx)
    return()
  endif()
  set(ptx ${GW_CUDA_LIB_DIR}/${name}.ptx)
  file(MAKE_DIRECTORY ${GW_CUDA_LIB_DIR})
  add_custom_command(
    OUTPUT ${ptx}
    COMMAND ${GW_CUDA_NVCC} ${GW_NVCC_FLAGS} ${GW_NVCC_HOST_FLAGS} -ptx -arch=compute_100
            ${source} -o ${ptx} -MD -MT ${ptx} -MF ${ptx}.d
    DEPENDS ${source} DEPFILE ${ptx}.d
    COMMENT "nvcc -ptx ${name}.cu" VERBATIM)
  add_custom_target(${name}_ptx ALL DEPENDS ${ptx})
endfunction()

# gw_cuda_object(target file.cu): see above.
function(gw_cuda_object target file)
  get_filename_component(name ${file} NAME_WE)
  get_filename_component(source ${file} ABSOLUTE)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${target}-${name}.o)
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${GW_CUDA_NVCC} ${GW_NVCC_FLAGS} ${GW_NVCC_HOST_FLAGS} -c ${source} -o ${object}
            -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90
            -gencode=arch=compute_100,code=[sm_100,compute_100]
            -MD -MT ${object} -MF ${object}.d
    DEPENDS ${source} DEPFILE ${object}.d
    COMMENT "nvcc ${name}.cu" VERBATIM)
  set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  target_sources(${target} PRIVATE ${object})
  gw_cuda_ptx(${file})
endfunction()

# gw_kernel_shim(name file.cu): see above. The very file, as C.
function(gw_kernel_shim name file)
  if(TARGET ${name}_cpu)
    return()
  endif()
  get_filename_component(source ${file} ABSOLUTE)
  set_source_files_properties(${source} PROPERTIES LANGUAGE C)
  add_library(${name}_cpu SHARED ${source})
  target_compile_options(${name}_cpu PRIVATE -O3)
  target_link_libraries(${name}_cpu PRIVATE m)
  set_target_properties(${name}_cpu PROPERTIES OUTPUT_NAME ${name}-cpu
                        LIBRARY_OUTPUT_DIRECTORY ${GW_CUDA_LIB_DIR})
endfunction()

if(EXISTS ${CMAKE_SOURCE_DIR}/daemon/device/cuda/kernels.cu)
  gw_kernel_shim(gw_kernels ${CMAKE_SOURCE_DIR}/daemon/device/cuda/kernels.cu)
  if(GW_HAVE_CUDA)
    gw_cuda_ptx(${CMAKE_SOURCE_DIR}/daemon/device/cuda/kernels.cu)
  endif()
endif()
