#pragma once
// All of dist: what runs between ranks.
#include <accrue/dist/checks.h>
#include <accrue/dist/exit_codes.h>
#include <accrue/dist/self.h>
#include <accrue/dist/threads.h>
