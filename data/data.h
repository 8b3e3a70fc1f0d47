#pragma once
// Everything of data/.
#include <accrue/data/batch.h>
#include <accrue/data/dataset.h>
#include <accrue/data/loader.h>
#include <accrue/data/sample_order.h>
#include <accrue/data/token_file.h>
#include <accrue/data/tokenizer.h>
#include <accrue/data/utf8.h>
