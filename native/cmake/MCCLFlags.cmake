# Warnings and sanitizers, shared by the library and its tests.

add_library(mccl_flags INTERFACE)
target_compile_options(mccl_flags INTERFACE -Wall -Wextra $<$<BOOL:${MCCL_WERROR}>:-Werror>)

if(MCCL_SANITIZE)
  if(NOT MCCL_SANITIZE MATCHES "^(address|undefined|address,undefined|thread)$")
    message(FATAL_ERROR "MCCL_SANITIZE=${MCCL_SANITIZE} is unknown; accepted: address, undefined, "
                        "address,undefined, thread, or empty.")
  endif()
  set(sanitizer_flags -fsanitize=${MCCL_SANITIZE} -fno-omit-frame-pointer -g)
  if(MCCL_SANITIZE MATCHES "undefined")
    list(APPEND sanitizer_flags -fno-sanitize-recover=undefined)
  endif()
  target_compile_options(mccl_flags INTERFACE ${sanitizer_flags} -O1)
  target_link_options(mccl_flags INTERFACE ${sanitizer_flags})
endif()
