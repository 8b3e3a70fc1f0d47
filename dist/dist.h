#pragma once
// The room of communicators, the gradient reducer and sharding. This version runs as one process:
// nothing is here yet, and nothing pretends to be.
