//! A page that processes share to take turns: words that each may read, write and wait on
//! (futex(2)).
//!
//! The memory is a file without a name (memfd), passed to a child as its standard input. The file
//! holds text beyond the words. Readers check words and text, because both come from another
//! process.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::MemfdFlags;
use rustix::thread::{Timespec, futex};

use crate::memory::Mapping;
use crate::{SysError, failed};

pub const WORDS: usize = 2048;
pub(crate) const MAX_TEXT_BYTES: usize = 256 << 10;
const WORDS_BYTES: usize = WORDS * size_of::<u64>();

#[derive(Debug)]
pub struct Page {
    file: File,
    words: Mapping,
}

impl Page {
    /// Makes a new page: all words 0, no text.
    pub fn create() -> Result<Page, SysError> {
        let fd = rustix::fs::memfd_create(c"daqmeter-turns", MemfdFlags::CLOEXEC);
        let file = File::from(fd.map_err(failed("memfd_create"))?);
        file.set_len(WORDS_BYTES as u64).map_err(failed("make a page for turns"))?;
        Page::of_file(file)
    }

    /// # Errors
    /// The file is too short, or cannot be mapped for reading and writing.
    pub fn of_file(file: File) -> Result<Page, SysError> {
        let bytes = file.metadata().map_err(failed("look at a page for turns"))?.len();
        if bytes < WORDS_BYTES as u64 {
            return Err(wrong("map a page for turns", "it is too short"));
        }
        let words = Mapping::shared(file.as_fd(), WORDS_BYTES, "map a page for turns")?;
        Ok(Page { file, words })
    }

    pub fn share(&self) -> Result<File, SysError> {
        self.file.try_clone().map_err(failed("share a page for turns"))
    }

    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < WORDS, "word {at} of {WORDS}");
        // SAFETY: within the mapping, aligned, and only ever used as an atomic word by all who have
        // it. The mapping lives as long as the page.
        unsafe { self.words.start.cast::<AtomicU64>().add(at).as_ref() }
    }

    /// Waits up to `limit` until a word differs from `seen`, by its lower 32 bits. Returns true if
    /// it does.
    pub fn wait(&self, at: usize, seen: u64, limit: Duration) -> bool {
        if self.word(at).load(Ordering::Acquire) != seen {
            return true;
        }
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        // A changed value, a signal and the timeout all end the wait; the caller reads the word
        // again.
        let _ = futex::wait(self.futex(at), futex::Flags::empty(), low(seen), Some(&limit));
        self.word(at).load(Ordering::Acquire) != seen
    }

    /// Adds 1 to a word and wakes its waiters.
    pub fn signal(&self, at: usize) {
        self.word(at).fetch_add(1, Ordering::AcqRel);
        let _ = futex::wake(self.futex(at), futex::Flags::empty(), u32::MAX >> 1);
    }

    fn futex(&self, at: usize) -> &AtomicU32 {
        let half = usize::from(cfg!(target_endian = "big"));
        // SAFETY: both halves lie within the word, and are only ever used as atomics.
        unsafe { &*std::ptr::from_ref(self.word(at)).cast::<AtomicU32>().add(half) }
    }

    pub fn set_text(&self, text: &str) -> Result<(), SysError> {
        let call = "write the text of a page for turns";
        if text.len() > MAX_TEXT_BYTES {
            return Err(wrong(call, "it is too long"));
        }
        self.file.set_len((WORDS_BYTES + text.len()) as u64).map_err(failed(call))?;
        self.file.write_all_at(text.as_bytes(), WORDS_BYTES as u64).map_err(failed(call))
    }

    pub fn text(&self) -> Result<String, SysError> {
        let call = "read the text of a page for turns";
        let bytes = self.file.metadata().map_err(failed(call))?.len();
        let bytes = bytes.saturating_sub(WORDS_BYTES as u64);
        if bytes > MAX_TEXT_BYTES as u64 {
            return Err(wrong(call, "it is too long"));
        }
        let mut text = vec![0; usize::try_from(bytes).expect("checked above")];
        self.file.read_exact_at(&mut text, WORDS_BYTES as u64).map_err(failed(call))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the lower half is what is compared")]
fn low(word: u64) -> u32 {
    word as u32
}

fn wrong(call: &str, why: &str) -> SysError {
    failed(call)(io::Error::new(io::ErrorKind::InvalidData, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn two_who_have_the_page_take_turns() {
        let page = Page::create().unwrap();
        let other = Page::of_file(page.share().unwrap()).unwrap();
        let answered = std::thread::spawn(move || {
            for turn in 0..100 {
                assert!(other.wait(0, turn, LONG));
                let asked = other.word(7).load(Ordering::Acquire);
                other.word(8).store(asked * 2, Ordering::Release);
                other.signal(1);
            }
        });
        for turn in 0..100 {
            page.word(7).store(turn, Ordering::Release);
            page.signal(0);
            assert!(page.wait(1, turn, LONG));
            assert_eq!(page.word(8).load(Ordering::Acquire), turn * 2);
        }
        answered.join().unwrap();
    }

    #[test]
    fn who_waits_in_vain_is_told_so() {
        let page = Page::create().unwrap();
        assert!(!page.wait(0, 0, Duration::from_millis(1)));
        assert!(page.wait(0, 1, LONG));
    }

    #[test]
    fn text_goes_both_ways_and_has_a_bound() {
        let page = Page::create().unwrap();
        assert_eq!(page.text().unwrap(), "");
        page.set_text("more than that").unwrap();
        page.set_text("less").unwrap();
        let other = Page::of_file(page.share().unwrap()).unwrap();
        assert_eq!(other.text().unwrap(), "less");
        assert!(page.set_text(&"x".repeat(MAX_TEXT_BYTES + 1)).is_err());
        page.share().unwrap().set_len(1 << 30).unwrap();
        assert!(other.text().unwrap_err().to_string().contains("too long"));
    }

    #[test]
    fn a_file_that_is_too_short_is_refused() {
        let file = tempfile().unwrap();
        assert!(Page::of_file(file).unwrap_err().to_string().contains("too short"));
    }

    fn tempfile() -> io::Result<File> {
        Page::create().map_err(io::Error::other)?.share().map_err(io::Error::other).and_then(
            |file| {
                file.set_len(8)?;
                Ok(file)
            },
        )
    }
}
