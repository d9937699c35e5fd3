// SPDX-License-Identifier: Apache-2.0
/* A device that TensorFlow takes for a GPU, to ask it where it would run what.

   Its memory is the host's, so copies are real; it has no kernels, so the first one that is launched fails. By then TensorFlow
   has placed, optimised and partitioned the graph against the kernels that its wheel has for CUDA, and that is all we ask for.
   PRETEND_GPUS in the environment is the number of devices. Compiled and loaded by placement.py. */

#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"

#define MEMORY_OF_A_DEVICE (16LL << 30)
#define ALIGNMENT 256

/* Streams, events and timers have nothing to do: everything is done when the call returns. */
struct SP_Stream_st {
  char unused;
};
struct SP_Event_st {
  char unused;
};
struct SP_Timer_st {
  char unused;
};

static void succeed(TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

/* Memory. */

static void* host_memory_allocate(const SP_Device* device, uint64_t size) {
  uint64_t blocks = (size + ALIGNMENT - 1) / ALIGNMENT;
  return aligned_alloc(ALIGNMENT, blocks * ALIGNMENT);
}

static void host_memory_deallocate(const SP_Device* device, void* memory) { free(memory); }

static void allocate(const SP_Device* device, uint64_t size, int64_t space, SP_DeviceMemoryBase* memory) {
  memory->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  memory->opaque = host_memory_allocate(device, size);
  memory->size = size;
}

static void deallocate(const SP_Device* device, SP_DeviceMemoryBase* memory) {
  free(memory->opaque);
  memory->opaque = NULL;
  memory->size = 0;
}

static TF_Bool no_allocator_stats(const SP_Device* device, SP_AllocatorStats* stats) { return 0; }

static TF_Bool device_memory_usage(const SP_Device* device, int64_t* free_bytes, int64_t* total_bytes) {
  *free_bytes = MEMORY_OF_A_DEVICE;
  *total_bytes = MEMORY_OF_A_DEVICE;
  return 1;
}

/* Streams, events, timers. */

static void create_stream(const SP_Device* device, SP_Stream* stream, TF_Status* status) {
  *stream = malloc(sizeof(struct SP_Stream_st));
  succeed(status);
}

static void destroy_stream(const SP_Device* device, SP_Stream stream) { free(stream); }

static void depend(const SP_Device* device, SP_Stream stream, SP_Stream other, TF_Status* status) { succeed(status); }

static void stream_status(const SP_Device* device, SP_Stream stream, TF_Status* status) { succeed(status); }

static void create_event(const SP_Device* device, SP_Event* event, TF_Status* status) {
  *event = malloc(sizeof(struct SP_Event_st));
  succeed(status);
}

static void destroy_event(const SP_Device* device, SP_Event event) { free(event); }

static SE_EventStatus event_status(const SP_Device* device, SP_Event event) { return SE_EVENT_COMPLETE; }

static void use_event(const SP_Device* device, SP_Stream stream, SP_Event event, TF_Status* status) { succeed(status); }

static void block_for_event(const SP_Device* device, SP_Event event, TF_Status* status) { succeed(status); }

static void create_timer(const SP_Device* device, SP_Timer* timer, TF_Status* status) {
  *timer = malloc(sizeof(struct SP_Timer_st));
  succeed(status);
}

static void destroy_timer(const SP_Device* device, SP_Timer timer) { free(timer); }

static void use_timer(const SP_Device* device, SP_Stream stream, SP_Timer timer, TF_Status* status) { succeed(status); }

static uint64_t no_time(SP_Timer timer) { return 0; }

static void synchronize(const SP_Device* device, TF_Status* status) { succeed(status); }

static TF_Bool call_on_host(const SP_Device* device, SP_Stream stream, SE_StatusCallbackFn callback, void* argument) {
  TF_Status* status = TF_NewStatus();
  callback(argument, status);
  TF_DeleteStatus(status);
  return 1;
}

/* Copies: in the order of a stream, and at once. */

static void device_to_host(
    const SP_Device* device, SP_Stream stream, void* to, const SP_DeviceMemoryBase* from, uint64_t size, TF_Status* status) {
  memcpy(to, from->opaque, size);
  succeed(status);
}

static void host_to_device(
    const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to, const void* from, uint64_t size, TF_Status* status) {
  memcpy(to->opaque, from, size);
  succeed(status);
}

static void device_to_device(
    const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from, uint64_t size,
    TF_Status* status) {
  memcpy(to->opaque, from->opaque, size);
  succeed(status);
}

static void device_to_host_now(
    const SP_Device* device, void* to, const SP_DeviceMemoryBase* from, uint64_t size, TF_Status* status) {
  device_to_host(device, NULL, to, from, size, status);
}

static void host_to_device_now(
    const SP_Device* device, SP_DeviceMemoryBase* to, const void* from, uint64_t size, TF_Status* status) {
  host_to_device(device, NULL, to, from, size, status);
}

static void device_to_device_now(
    const SP_Device* device, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from, uint64_t size, TF_Status* status) {
  device_to_device(device, NULL, to, from, size, status);
}

static void fill(
    const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* memory, uint8_t byte, uint64_t size, TF_Status* status) {
  memset(memory->opaque, byte, size);
  succeed(status);
}

static void fill_with_zeros(
    const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* memory, uint64_t size, TF_Status* status) {
  fill(device, stream, memory, 0, size, status);
}

static void fill_with_words(
    const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* memory, uint32_t word, uint64_t size,
    TF_Status* status) {
  for (uint64_t i = 0; i < size / sizeof(word); i++) ((uint32_t*)memory->opaque)[i] = word;
  succeed(status);
}

/* The platform. */

static void get_device_count(const SP_Platform* platform, int* count, TF_Status* status) {
  const char* given = getenv("PRETEND_GPUS");
  *count = given ? atoi(given) : 1;
  succeed(status);
}

static void create_device(const SP_Platform* platform, SE_CreateDeviceParams* params, TF_Status* status) {
  params->device->struct_size = SP_DEVICE_STRUCT_SIZE;
  params->device->ordinal = params->ordinal;
  params->device->hardware_name = "pretended";
  params->device->device_vendor = "nobody";
  params->device->pci_bus_id = "none";
  succeed(status);
}

static void destroy_device(const SP_Platform* platform, SP_Device* device) {}

static void create_device_fns(const SP_Platform* platform, SE_CreateDeviceFnsParams* params, TF_Status* status) {
  memset(params->device_fns, 0, sizeof(SP_DeviceFns));
  params->device_fns->struct_size = SP_DEVICE_FNS_STRUCT_SIZE;
  succeed(status);
}

static void destroy_device_fns(const SP_Platform* platform, SP_DeviceFns* fns) {}

static void create_stream_executor(
    const SP_Platform* platform, SE_CreateStreamExecutorParams* params, TF_Status* status) {
  SP_StreamExecutor executor = {
      .struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE,
      .allocate = allocate,
      .deallocate = deallocate,
      .host_memory_allocate = host_memory_allocate,
      .host_memory_deallocate = host_memory_deallocate,
      .get_allocator_stats = no_allocator_stats,
      .device_memory_usage = device_memory_usage,
      .create_stream = create_stream,
      .destroy_stream = destroy_stream,
      .create_stream_dependency = depend,
      .get_stream_status = stream_status,
      .create_event = create_event,
      .destroy_event = destroy_event,
      .get_event_status = event_status,
      .record_event = use_event,
      .wait_for_event = use_event,
      .create_timer = create_timer,
      .destroy_timer = destroy_timer,
      .start_timer = use_timer,
      .stop_timer = use_timer,
      .memcpy_dtoh = device_to_host,
      .memcpy_htod = host_to_device,
      .memcpy_dtod = device_to_device,
      .sync_memcpy_dtoh = device_to_host_now,
      .sync_memcpy_htod = host_to_device_now,
      .sync_memcpy_dtod = device_to_device_now,
      .block_host_for_event = block_for_event,
      .block_host_until_done = stream_status,
      .synchronize_all_activity = synchronize,
      .mem_zero = fill_with_zeros,
      .memset = fill,
      .memset32 = fill_with_words,
      .host_callback = call_on_host,
  };
  *params->stream_executor = executor;
  succeed(status);
}

static void destroy_stream_executor(const SP_Platform* platform, SP_StreamExecutor* executor) {}

static void create_timer_fns(const SP_Platform* platform, SP_TimerFns* fns, TF_Status* status) {
  fns->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
  fns->nanoseconds = no_time;
  succeed(status);
}

static void destroy_timer_fns(const SP_Platform* platform, SP_TimerFns* fns) {}

static void destroy_platform(SP_Platform* platform) {}

static void destroy_platform_fns(SP_PlatformFns* fns) {}

void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status* status) {
  params->struct_size = SE_PLATFORM_REGISTRATION_PARAMS_STRUCT_SIZE;
  params->major_version = SE_MAJOR;
  params->minor_version = SE_MINOR;
  params->patch_version = SE_PATCH;
  params->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  params->platform->name = "PRETENDED";
  params->platform->type = "GPU";
  params->platform->supports_unified_memory = 0;
  params->platform->use_bfc_allocator = 0;
  params->platform->force_memory_growth = 1;
  params->platform_fns->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  params->platform_fns->get_device_count = get_device_count;
  params->platform_fns->create_device = create_device;
  params->platform_fns->destroy_device = destroy_device;
  params->platform_fns->create_device_fns = create_device_fns;
  params->platform_fns->destroy_device_fns = destroy_device_fns;
  params->platform_fns->create_stream_executor = create_stream_executor;
  params->platform_fns->destroy_stream_executor = destroy_stream_executor;
  params->platform_fns->create_timer_fns = create_timer_fns;
  params->platform_fns->destroy_timer_fns = destroy_timer_fns;
  params->destroy_platform = destroy_platform;
  params->destroy_platform_fns = destroy_platform_fns;
  succeed(status);
}
