# SPDX-License-Identifier: Apache-2.0
# Compile options of everything in the tree, and how a pure part is declared.
add_compile_options(-Wall -Wextra -Wconversion -Wshadow -Wpointer-arith -Wstrict-prototypes
                    -Wmissing-prototypes -Wvla -Werror)
# What depends on the optimizer's mood differs between compilers and sanitizers: told, no error.
add_compile_options(-Wno-error=maybe-uninitialized -Wno-error=array-bounds
                    -Wno-error=stringop-overflow -Wno-error=stringop-overread
                    -Wno-error=stringop-truncation -Wno-error=format-truncation)
# Bits are promised: no contraction into FMA, no fast-math anywhere.
add_compile_options(-ffp-contract=off)
include_directories(${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)
add_compile_definitions(_GNU_SOURCE)
if(GW_TEST_EDGES)
  add_compile_definitions(GW_TEST_EDGES=1)
endif()
if(GW_SANITIZE)
  add_compile_options(-fsanitize=${GW_SANITIZE} -fno-omit-frame-pointer -g)
  if(GW_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
  add_link_options(-fsanitize=${GW_SANITIZE})
endif()

# Hostile peers: an overrun that slips through ends the process; its tables of calls are read-only.
if(NOT GW_SANITIZE AND CMAKE_BUILD_TYPE MATCHES "Rel")
  add_compile_options(-fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
endif()
add_link_options(-Wl,-z,relro -Wl,-z,now)

# A pure part: links libc only (a test checks its undefined symbols and includes).
function(gw_pure_library name)
  add_library(${name} STATIC ${ARGN})
  if(GW_COVERAGE)
    target_compile_options(${name} PRIVATE --coverage -fprofile-update=atomic)
    target_link_options(${name} INTERFACE --coverage)
  endif()
  set_property(GLOBAL APPEND PROPERTY GW_PURE_LIBRARIES ${name})
endfunction()
