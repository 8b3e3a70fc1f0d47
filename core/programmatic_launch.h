#pragma once

namespace accrue {

/// Whether accrue's CUDA kernels use programmatic dependent launch (CUDA Programming Guide), on
/// devices of compute capability 9.0 or newer that the build has code for (PTX of an older
/// architecture does not count): a kernel may be put on the GPU while the last blocks
/// of the kernel before it still run, and waits there before it touches memory. Saves time between
/// small kernels; results are the same. For the whole process, on at the beginning; a change
/// counts for the launches after it. No effect on other devices.
void set_programmatic_launch(bool on) noexcept;
bool programmatic_launch() noexcept;

}  // namespace accrue
