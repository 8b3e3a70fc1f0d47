#pragma once
// Every op, differentiable and raw. The list is made by CMake from the folders.
#include <accrue/kernels_all.h>
