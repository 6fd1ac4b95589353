/* CUDA's driver with nothing behind it: what Triton calls to load and launch a kernel succeeds, and
   does nothing. Launches are counted. */

typedef unsigned long long address;

long num_launches = 0;

int cuLaunchKernelEx(const void *config, void *function, void **params, void **extra) {
  ++num_launches;
  return 0;
}

int cuPointerGetAttribute(void *data, int attribute, address pointer) {
  *(address *)data = pointer;
  return 0;
}

/* 97 is the shared memory that a block may ask for. */
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 97 ? 232448 : 65536;
  return 0;
}

/* 0 is the most threads of a block. */
int cuFuncGetAttribute(int *value, int attribute, void *function) {
  *value = attribute == 0 ? 1024 : 0;
  return 0;
}

static int some(void **handle) {
  static int target;
  *handle = &target;
  return 0;
}

int cuCtxGetCurrent(void **context) { return some(context); }
int cuDevicePrimaryCtxRetain(void **context, int device) { return some(context); }
int cuModuleLoadData(void **module, const void *image) { return some(module); }
int cuModuleGetFunction(void **function, void *module, const char *name) { return some(function); }

int cuGetErrorString(int error, const char **text) {
  *text = "no error";
  return 0;
}

int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return 0;
}

int cuDriverGetVersion(int *version) {
  *version = 13000;
  return 0;
}

int cuCtxSetCurrent(void *context) { return 0; }
int cuFuncSetCacheConfig(void *function, int config) { return 0; }
int cuFuncSetAttribute(void *function, int attribute, int value) { return 0; }
int cuCtxGetLimit(unsigned long *value, int limit) { return 0; }
int cuCtxSetLimit(int limit, unsigned long value) { return 0; }
int cuOccupancyMaxActiveClusters(int *count, void *function, const void *config) { return 0; }
int cuTensorMapEncodeTiled(void *map) { return 0; }
int cuTensorMapEncodeIm2col(void *map) { return 0; }
