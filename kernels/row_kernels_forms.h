// The forms of the row kernels, and which of them run here. Included before a form turns instructions on, so that nothing
// of the standard headers is compiled for them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cpu.h"
#include "kv_pack.h"
#include "row_kernels.h"

namespace refrain {

#if REFRAIN_X86
extern const RowKernels kAvx512Rows;
#endif
extern const RowKernels kScalarRows;

}  // namespace refrain
