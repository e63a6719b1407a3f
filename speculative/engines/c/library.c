// The library that is compiled: each file uses those before it.
#include "cpu.h"
#include "arguments.h"
#include "rows.c"
#include "products.c"
#include "threads.c"
#include "engine.c"
#include "pack.c"
#include "crc32c.c"
