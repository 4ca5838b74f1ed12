//! A driver in software, for tests: one device whose memory is the host's.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{Api, DevicePointer, Handle, Result_};

/// Its functions.
pub fn driver() -> Api {
    Api {
        init,
        device_count,
        device_name,
        retain,
        release: device,
        set_current: handle,
        alloc,
        free,
        host_alloc,
        host_free,
        stream_create,
        stream_destroy: handle,
        stream_wait: handle,
        to_device,
        to_host,
    }
}

/// Before each block lies its size.
const HEAD: usize = 64;
fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes + HEAD, HEAD).expect("a size of this process")
}
unsafe fn take(bytes: usize) -> *mut u8 {
    // SAFETY: the layout is not empty; the head holds the size.
    unsafe {
        let start = alloc_zeroed(layout(bytes));
        start.cast::<usize>().write(bytes);
        start.add(HEAD)
    }
}
unsafe fn give(block: *mut u8) {
    // SAFETY: the block is one of `take`'s.
    unsafe {
        let start = block.sub(HEAD);
        dealloc(start, layout(start.cast::<usize>().read()));
    }
}
unsafe extern "C" fn init(_: c_uint) -> Result_ {
    0
}
unsafe extern "C" fn device_count(count: *mut c_int) -> Result_ {
    // SAFETY: the caller's live output, as in all of these.
    unsafe { count.write(1) };
    0
}
unsafe extern "C" fn device_name(name: *mut c_char, _: c_int, _: c_int) -> Result_ {
    // SAFETY: the buffer has room.
    unsafe { std::ptr::copy_nonoverlapping(c"software".as_ptr(), name, 9) };
    0
}
unsafe extern "C" fn retain(context: *mut Handle, _: c_int) -> Result_ {
    // SAFETY: as above.
    unsafe { context.write(std::ptr::dangling_mut()) };
    0
}
unsafe extern "C" fn device(_: c_int) -> Result_ {
    0
}
unsafe extern "C" fn handle(_: Handle) -> Result_ {
    0
}
unsafe extern "C" fn alloc(memory: *mut DevicePointer, bytes: usize) -> Result_ {
    // SAFETY: as above.
    unsafe { memory.write(take(bytes).expose_provenance() as u64) };
    0
}
unsafe extern "C" fn free(memory: DevicePointer) -> Result_ {
    // SAFETY: one of `alloc`'s.
    unsafe { give(std::ptr::with_exposed_provenance_mut(usize::try_from(memory).unwrap_or(0))) };
    0
}
unsafe extern "C" fn host_alloc(memory: *mut Handle, bytes: usize, _: c_uint) -> Result_ {
    // SAFETY: as above.
    unsafe { memory.write(take(bytes).cast()) };
    0
}
unsafe extern "C" fn host_free(memory: Handle) -> Result_ {
    // SAFETY: one of `host_alloc`'s.
    unsafe { give(memory.cast()) };
    0
}
unsafe extern "C" fn stream_create(stream: *mut Handle, _: c_uint) -> Result_ {
    // SAFETY: as above.
    unsafe { stream.write(std::ptr::dangling_mut()) };
    0
}
unsafe extern "C" fn to_device(
    to: DevicePointer,
    from: *const c_void,
    bytes: usize,
    _: Handle,
) -> Result_ {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(usize::try_from(to).unwrap_or(0));
    // SAFETY: both have as many bytes, by the caller.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to, bytes) };
    0
}
unsafe extern "C" fn to_host(
    to: *mut c_void,
    from: DevicePointer,
    bytes: usize,
    _: Handle,
) -> Result_ {
    let from = std::ptr::with_exposed_provenance::<u8>(usize::try_from(from).unwrap_or(0));
    // SAFETY: as above.
    unsafe { std::ptr::copy_nonoverlapping(from, to.cast::<u8>(), bytes) };
    0
}
