//! CUDA's copy engines through the driver library, loaded when asked for: no toolkit and no build dependency.
//!
//! Source: the CUDA driver API reference (names and signatures of `libcuda.so.1`; the `_v2` forms are those of 64-bit sizes). Tested on a
//! function table in software; see CHANGELOG for what has run on hardware.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::SysError;

type Result_ = c_int;
type DevicePointer = u64;
type Handle = *mut c_void;

macro_rules! api {
    ($($field:ident = $symbol:literal: fn($($kind:ty),*);)*) => {
        /// The functions of the driver that are used here.
        #[derive(Clone, Copy)]
        #[allow(missing_docs, reason = "each is the driver's function of that name")]
        pub struct Api { $($field: unsafe extern "C" fn($($kind),*) -> Result_,)* }

        impl Api {
            /// Loads the driver library.
            ///
            /// # Errors
            /// ENOENT when there is no driver, or it lacks a function.
            pub fn load() -> Result<Api, SysError> {
                let missing = |what: &str| SysError {
                    call: format!("no {what}: NVIDIA's driver is not installed"),
                    source: std::io::Error::from_raw_os_error(libc::ENOENT),
                };
                // SAFETY: a constant name; the library's initialisers are the driver's own business.
                let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
                if library.is_null() {
                    return Err(missing("libcuda.so.1"));
                }
                $(
                    let name: &CStr = $symbol;
                    // SAFETY: the library stays loaded for the life of the process.
                    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
                    if address.is_null() {
                        return Err(missing(&name.to_string_lossy()));
                    }
                    // SAFETY: the symbol is a function of the documented signature.
                    let $field = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> Result_>(address) };
                )*
                Ok(Api { $($field,)* })
            }
        }
    };
}

api! {
    init = c"cuInit": fn(c_uint);
    device_count = c"cuDeviceGetCount": fn(*mut c_int);
    device_name = c"cuDeviceGetName": fn(*mut c_char, c_int, c_int);
    retain = c"cuDevicePrimaryCtxRetain": fn(*mut Handle, c_int);
    release = c"cuDevicePrimaryCtxRelease_v2": fn(c_int);
    set_current = c"cuCtxSetCurrent": fn(Handle);
    alloc = c"cuMemAlloc_v2": fn(*mut DevicePointer, usize);
    free = c"cuMemFree_v2": fn(DevicePointer);
    host_alloc = c"cuMemHostAlloc": fn(*mut Handle, usize, c_uint);
    host_free = c"cuMemFreeHost": fn(Handle);
    stream_create = c"cuStreamCreate": fn(*mut Handle, c_uint);
    stream_destroy = c"cuStreamDestroy_v2": fn(Handle);
    stream_wait = c"cuStreamSynchronize": fn(Handle);
    to_device = c"cuMemcpyHtoDAsync_v2": fn(DevicePointer, *const c_void, usize, Handle);
    to_host = c"cuMemcpyDtoHAsync_v2": fn(*mut c_void, DevicePointer, usize, Handle);
}

const NON_BLOCKING: c_uint = 1;

fn check(result: Result_, call: &str) -> Result<(), SysError> {
    if result == 0 {
        return Ok(());
    }
    let source = std::io::Error::other(format!("CUDA error {result}"));
    Err(SysError { call: call.to_owned(), source })
}

impl Api {
    /// Names of the devices.
    ///
    /// # Errors
    /// The driver's.
    pub fn devices(&self) -> Result<Vec<String>, SysError> {
        let mut count = 0;
        // SAFETY: the driver's functions with live outputs.
        unsafe {
            check((self.init)(0), "cuInit")?;
            check((self.device_count)(&raw mut count), "cuDeviceGetCount")?;
        }
        let name = |device: c_int| {
            let mut name = [0_u8; 128];
            // SAFETY: the buffer is as long as it says.
            unsafe {
                check((self.device_name)(name.as_mut_ptr().cast(), 128, device), "cuDeviceGetName")?
            };
            Ok(CStr::from_bytes_until_nul(&name)
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default())
        };
        (0..count).map(name).collect()
    }
}

/// A host buffer, a device buffer and a stream between them.
pub struct Pair {
    api: Api,
    device: c_int,
    bytes: usize,
    host: *mut u8,
    pinned: bool,
    pageable: Vec<u8>,
    memory: DevicePointer,
    stream: Handle,
}

// SAFETY: the driver's handles may be used by any thread that has the context current, which every call here sees to.
unsafe impl Send for Pair {}

impl Pair {
    /// Buffers of that size with device 0; `pinned` host memory, or ordinary (pageable).
    ///
    /// # Errors
    /// The driver's.
    pub fn new(api: Api, bytes: usize, pinned: bool) -> Result<Pair, SysError> {
        let device = 0;
        let (mut context, mut host, mut memory, mut stream) =
            (std::ptr::null_mut(), std::ptr::null_mut(), 0, std::ptr::null_mut());
        let mut pageable = Vec::new();
        // SAFETY: the driver's functions with live outputs; what was made is released when the pair is dropped.
        unsafe {
            check((api.init)(0), "cuInit")?;
            check((api.retain)(&raw mut context, device), "cuDevicePrimaryCtxRetain")?;
            check((api.set_current)(context), "cuCtxSetCurrent")?;
            check((api.alloc)(&raw mut memory, bytes), &format!("cuMemAlloc of {bytes} bytes"))?;
            check((api.stream_create)(&raw mut stream, NON_BLOCKING), "cuStreamCreate")?;
            if pinned {
                check(
                    (api.host_alloc)(&raw mut host, bytes, 0),
                    &format!("cuMemHostAlloc of {bytes} bytes"),
                )?;
            } else {
                pageable = vec![0; bytes];
                host = pageable.as_mut_ptr().cast();
            }
        }
        Ok(Pair { api, device, bytes, host: host.cast(), pinned, pageable, memory, stream })
    }

    /// The host's buffer.
    pub fn host(&mut self) -> &mut [u8] {
        // SAFETY: `bytes` bytes of ours; no copy is under way between calls.
        unsafe { std::slice::from_raw_parts_mut(self.host, self.bytes) }
    }

    /// Host to device (`to_host` false) or back, and waits for the stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn copy(&mut self, to_host: bool) -> Result<(), SysError> {
        // SAFETY: both buffers have `bytes` bytes, and the wait ends the driver's use of them.
        unsafe {
            let queued = if to_host {
                (self.api.to_host)(self.host.cast(), self.memory, self.bytes, self.stream)
            } else {
                (self.api.to_device)(self.memory, self.host.cast(), self.bytes, self.stream)
            };
            check(queued, if to_host { "cuMemcpyDtoHAsync" } else { "cuMemcpyHtoDAsync" })?;
            check((self.api.stream_wait)(self.stream), "cuStreamSynchronize")
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: each was made by `new` and is released once. Errors here have no one to be told.
        unsafe {
            (self.api.stream_destroy)(self.stream);
            (self.api.free)(self.memory);
            if self.pinned {
                (self.api.host_free)(self.host.cast());
            }
            (self.api.release)(self.device);
        }
        self.pageable.clear();
    }
}

#[cfg(any(test, feature = "software-cuda"))]
pub mod software;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_to_the_device_and_back() {
        let api = software::driver();
        assert_eq!(api.devices().unwrap(), ["software"]);
        for pinned in [true, false] {
            let mut pair = Pair::new(api, 5000, pinned).unwrap();
            pair.host().fill(7);
            pair.copy(false).unwrap();
            pair.host().fill(0);
            pair.copy(true).unwrap();
            assert!(pair.host().iter().all(|byte| *byte == 7), "pinned {pinned}");
        }
    }

    #[test]
    fn a_host_without_the_driver_says_so() {
        if let Err(error) = Api::load() {
            assert!(error.to_string().contains("driver is not installed"), "{error}");
        }
    }
}
