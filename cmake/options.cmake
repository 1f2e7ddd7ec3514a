# SPDX-License-Identifier: Apache-2.0
# Compile options of everything in the tree, and how a pure part is declared.
add_compile_options(-Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes
                    -Wvla -Werror)
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

# A pure part: links libc only (a test checks its undefined symbols and includes).
function(gw_pure_library name)
  add_library(${name} STATIC ${ARGN})
  set_property(GLOBAL APPEND PROPERTY GW_PURE_LIBRARIES ${name})
endfunction()
