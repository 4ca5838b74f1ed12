//! Fences between two threads of which one passes its fence for each block and the other seldom:
//! the kernel makes the first one's CPU pass a fence when the second one asks (membarrier(2)).

use std::sync::LazyLock;
use std::sync::atomic::{Ordering, compiler_fence, fence};

use rustix::thread::{MembarrierCommand, membarrier};

static IS_REGISTERED: LazyLock<bool> =
    LazyLock::new(|| membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok());

/// Orders what this thread wrote before and reads after, as seen by a thread that passes
/// [`rare`]. It is no instruction where the kernel has the call.
pub fn frequent() {
    match *IS_REGISTERED {
        true => compiler_fence(Ordering::SeqCst),
        false => fence(Ordering::SeqCst),
    }
}

/// The other side of [`frequent`]: a system call.
pub fn rare() {
    fence(Ordering::SeqCst);
    if *IS_REGISTERED {
        membarrier(MembarrierCommand::PrivateExpedited).expect("this process has registered");
    }
}
