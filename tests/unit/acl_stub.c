/* Stands in for libascendcl: writes each call as one line to $ACL_LOG, and fails as $ACL_FAIL ("call=code") says.
   The structures are as CANN's public header acl_rt.h lays them out, independent of the ones under test. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef union { uint32_t isLazyLoad; uint32_t magic; int32_t cpuKernelMode; uint32_t rsv[4]; } LoadValue;
typedef struct { int type; LoadValue value; } LoadOption;
typedef struct { LoadOption *options; size_t numOpt; } LoadOptions;
typedef union { uint8_t schemMode; uint32_t dynUBufSize; uint16_t timeout; uint32_t rsv[4]; } AttrValue;
typedef struct { int id; AttrValue value; } Attr;
typedef struct { Attr *attrs; size_t numAttrs; } LaunchCfg;

static _Thread_local int device = -1;
static int loaded;

static FILE *begin(const char *call) {
  FILE *log = fopen(getenv("ACL_LOG"), "a");
  fprintf(log, "%s", call);
  return log;
}

static int end(FILE *log, const char *call) {
  const char *fail = getenv("ACL_FAIL");
  size_t length = strlen(call);
  fprintf(log, "\n");
  fclose(log);
  return fail && !strncmp(fail, call, length) && fail[length] == '=' ? atoi(fail + length + 1) : 0;
}

int aclrtGetDevice(int32_t *out) {
  if (device < 0) return 107002;
  *out = device;
  return 0;
}

int aclrtSetDevice(int32_t number) {
  FILE *log = begin("aclrtSetDevice");
  fprintf(log, " device=%d", number);
  device = number;
  return end(log, "aclrtSetDevice");
}

int aclrtSynchronizeStream(void *stream) {
  FILE *log = begin("aclrtSynchronizeStream");
  fprintf(log, " stream=%ld", (long)stream);
  return end(log, "aclrtSynchronizeStream");
}

int aclrtBinaryLoadFromData(const void *data, size_t length, const LoadOptions *options, void **binary) {
  FILE *log = begin("aclrtBinaryLoadFromData");
  fprintf(log, " length=%zu first=%.4s", length, (const char *)data);
  for (size_t i = 0; options && i < options->numOpt; ++i)
    fprintf(log, " option%d=%u", options->options[i].type, options->options[i].value.magic);
  *binary = (void *)(intptr_t)(1000 + ++loaded);
  fprintf(log, " binary=%ld", (long)*binary);
  return end(log, "aclrtBinaryLoadFromData");
}

int aclrtBinaryGetFunction(void *binary, const char *name, void **function) {
  FILE *log = begin("aclrtBinaryGetFunction");
  *function = (void *)((intptr_t)binary + 1000);
  fprintf(log, " binary=%ld name=%s function=%ld", (long)binary, name, (long)*function);
  return end(log, "aclrtBinaryGetFunction");
}

int aclrtGetHardwareSyncAddr(void **address) {
  FILE *log = begin("aclrtGetHardwareSyncAddr");
  *address = (void *)0x7700001234;
  return end(log, "aclrtGetHardwareSyncAddr");
}

int aclrtLaunchKernelWithHostArgs(void *function, uint32_t blocks, void *stream, LaunchCfg *config, void *args,
                                  size_t size, void *holders, size_t count) {
  FILE *log = begin("aclrtLaunchKernelWithHostArgs");
  fprintf(log, " function=%ld blocks=%u stream=%ld size=%zu holders=%ld count=%zu", (long)function, blocks,
          (long)stream, size, (long)holders, count);
  for (size_t i = 0; config && i < config->numAttrs; ++i)
    fprintf(log, " attr%d=%u", config->attrs[i].id, config->attrs[i].value.dynUBufSize);
  fprintf(log, " args=");
  for (size_t i = 0; i < size; ++i) fprintf(log, "%02x", ((unsigned char *)args)[i]);
  return end(log, "aclrtLaunchKernelWithHostArgs");
}

const char *aclGetRecentErrMsg(void) { return getenv("ACL_SAID"); }
