#pragma once
// Everything of core/.
#include <accrue/core/allocator.h>
#include <accrue/core/backend.h>
#include <accrue/core/dispatch.h>
#include <accrue/core/error.h>
#include <accrue/core/hash.h>
#include <accrue/core/isa.h>
#include <accrue/core/log.h>
#include <accrue/core/loss.h>
#include <accrue/core/name_scope.h>
#include <accrue/core/parallel.h>
#include <accrue/core/parameter.h>
#include <accrue/core/print.h>
#include <accrue/core/random.h>
#include <accrue/core/tape.h>
#include <accrue/core/tensor.h>
#include <accrue/core/types.h>
