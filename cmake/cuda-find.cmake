# SPDX-License-Identifier: Apache-2.0
#
# Finds the CUDA toolkit 13 and NCCL >= 2.28: what is installed first, else the wheels that
# cuda-wheels.sh brought. Included by cuda.cmake; as a script it prints what is missing:
#   cmake -DGW_CUDA_WHEELS=DIR -P cmake/cuda-find.cmake     -> lines "toolkit", "nccl", or none
#
# Sets, empty if not found: GW_CUDA_NVCC, GW_CUDA_INCLUDE, GW_CUDA_CUDART (libcudart.so.13),
# GW_CUDA_VERSION; GW_NCCL_INCLUDE, GW_NCCL_LIBRARY (libnccl.so.2), GW_NCCL_VERSION. A root that
# the user names (GW_CUDA_ROOT, GW_NCCL_ROOT) is the only place looked at.

# Sets <ret> to the first <root>/<one of the directories>/<file> that is there.
function(gw_find_below root file ret)
  file(GLOB more LIST_DIRECTORIES true "${root}/targets/*-linux/*" "${root}/lib/*-linux-gnu")
  set(found)
  foreach(dir ${root}/include ${root}/lib64 ${root}/lib ${more})
    if(NOT found AND EXISTS ${dir}/${file})
      set(found ${dir}/${file})
    endif()
  endforeach()
  set(${ret} "${found}" PARENT_SCOPE)
endfunction()

# Sets <ret> to the number that a header defines <name> as, or 0.
function(gw_header_number header name ret)
  set(number 0)
  if(header)
    file(STRINGS ${header} line REGEX "^#define +${name} +[0-9]+" LIMIT_COUNT 1)
    if(line MATCHES "${name} +([0-9]+)")
      set(number ${CMAKE_MATCH_1})
    endif()
  endif()
  set(${ret} ${number} PARENT_SCOPE)
endfunction()

# nvcc is a link or a script in some installations: its own directory says nothing then, and the
# usual places come into play.
find_program(GW_CUDA_NVCC_IN_PATH nvcc NO_CACHE)
set(roots ${GW_CUDA_ROOT})
if(NOT roots)
  file(GLOB versions LIST_DIRECTORIES true "/usr/local/cuda-13*")
  set(roots $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda ${versions} /opt/cuda)
  if(GW_CUDA_NVCC_IN_PATH)
    get_filename_component(nvcc ${GW_CUDA_NVCC_IN_PATH} REALPATH)
    get_filename_component(root ${nvcc}/../.. ABSOLUTE)
    list(APPEND roots ${root})
  endif()
  list(APPEND roots ${GW_CUDA_WHEELS}/nvidia/cu13)
endif()
set(GW_CUDA_NVCC)
set(GW_CUDA_INCLUDE)
set(GW_CUDA_CUDART)
set(GW_CUDA_VERSION)
foreach(root ${roots})
  gw_find_below(${root} cuda_runtime_api.h runtime)
  gw_find_below(${root} cuda.h driver)
  gw_find_below(${root} libcudart.so.13 cudart)
  gw_header_number("${runtime}" CUDART_VERSION number)
  if(EXISTS ${root}/bin/nvcc AND driver AND cudart AND number GREATER_EQUAL 13000
     AND number LESS 14000)
    set(GW_CUDA_NVCC ${root}/bin/nvcc)
    get_filename_component(GW_CUDA_INCLUDE ${runtime} DIRECTORY)
    set(GW_CUDA_CUDART ${cudart})
    math(EXPR minor "${number} % 1000 / 10")
    set(GW_CUDA_VERSION 13.${minor})
    break()
  endif()
endforeach()

set(roots ${GW_NCCL_ROOT})
if(NOT roots)
  set(roots $ENV{NCCL_HOME} /usr /usr/local /usr/local/cuda /opt/nccl
            ${GW_CUDA_WHEELS}/nvidia/nccl)
endif()
set(GW_NCCL_INCLUDE)
set(GW_NCCL_LIBRARY)
set(GW_NCCL_VERSION)
foreach(root ${roots})
  gw_find_below(${root} nccl.h header)
  gw_find_below(${root} libnccl.so.2 library)
  gw_header_number("${header}" NCCL_MAJOR major)
  gw_header_number("${header}" NCCL_MINOR minor)
  if(header AND library AND major EQUAL 2 AND minor GREATER_EQUAL 28)
    get_filename_component(GW_NCCL_INCLUDE ${header} DIRECTORY)
    set(GW_NCCL_LIBRARY ${library})
    set(GW_NCCL_VERSION ${major}.${minor})
    break()
  endif()
endforeach()

if(CMAKE_SCRIPT_MODE_FILE)
  # message() writes to stderr, or with a prefix.
  set(missing)
  if(NOT GW_CUDA_NVCC)
    list(APPEND missing toolkit)
  endif()
  if(NOT GW_NCCL_LIBRARY)
    list(APPEND missing nccl)
  endif()
  foreach(what ${missing})
    execute_process(COMMAND ${CMAKE_COMMAND} -E echo ${what})
  endforeach()
endif()
