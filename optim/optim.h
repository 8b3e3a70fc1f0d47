#pragma once
// Everything of optim/.
#include <accrue/optim/coupled.h>
#include <accrue/optim/host_state.h>
#include <accrue/optim/optimizer.h>
#include <accrue/optim/plan.h>
#include <accrue/optim/rates.h>
#include <accrue/optim/schedule.h>
#include <accrue/optim/step.h>
#include <accrue/optim/step_observer.h>
#include <accrue/optim/window.h>
