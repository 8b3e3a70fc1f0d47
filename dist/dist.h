#pragma once
// All of dist: what runs between ranks.
#include <accrue/config.h>
#include <accrue/dist/agree.h>
#include <accrue/dist/checkpoint.h>
#include <accrue/dist/checks.h>
#include <accrue/dist/context.h>
#include <accrue/dist/environment.h>
#include <accrue/dist/exit_codes.h>
#include <accrue/dist/failure.h>
#include <accrue/dist/flight_recorder.h>
#include <accrue/dist/gpus.h>
#include <accrue/dist/launch.h>
#include <accrue/dist/nccl/nccl.h>
#include <accrue/dist/self.h>
#include <accrue/dist/signals.h>
#include <accrue/dist/threads.h>
#include <accrue/dist/watchdog.h>
