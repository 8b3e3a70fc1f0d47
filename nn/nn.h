#pragma once
// Everything of nn/.
#include <accrue/nn/batch_norm.h>
#include <accrue/nn/contrastive.h>
#include <accrue/nn/generate.h>
#include <accrue/nn/gpt.h>
#include <accrue/nn/init.h>
#include <accrue/nn/layers.h>
