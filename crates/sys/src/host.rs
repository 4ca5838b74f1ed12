//! Facts of the machine from /proc and /sys, below a root that tests replace. A missing file gives
//! a missing fact.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rustix::fs::SeekFrom;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

#[derive(Clone, Debug)]
pub struct Files {
    root: PathBuf,
}

impl Default for Files {
    fn default() -> Self {
        Files { root: PathBuf::from("/") }
    }
}

/// Mounts a file system at no place: it ends with its descriptor (fsmount(2)).
pub(crate) fn own_mount(kind: &str, how: MountAttrFlags) -> rustix::io::Result<OwnedFd> {
    let open = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(open.as_fd())?;
    fsmount(open.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, how)
}

impl Files {
    pub fn below(root: impl Into<PathBuf>) -> Files {
        Files { root: root.into() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Reads a whole file, trimmed; `None` when it cannot be read or is empty.
    pub fn text(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.root.join(path)).ok()?;
        let trimmed = text.trim();
        (!trimmed.is_empty()).then(|| trimmed.to_owned())
    }

    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(path)).into_iter().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Folder of tracefs: where it is mounted, or in a mount of our own that other processes do not
    /// see (CAP_SYS_ADMIN).
    pub fn tracefs(&self) -> Option<String> {
        const PLACES: [&str; 2] = ["sys/kernel/tracing", "sys/kernel/debug/tracing"];
        static OWN: LazyLock<Option<OwnedFd>> =
            LazyLock::new(|| own_mount("tracefs", MountAttrFlags::MOUNT_ATTR_RDONLY).ok());
        let mounted = PLACES.into_iter().find(|place| !self.names(place).is_empty());
        mounted.map(str::to_owned).or_else(|| {
            let own = OWN.as_ref().filter(|_| self.root == Path::new("/"))?;
            Some(format!("/proc/self/fd/{}", own.as_raw_fd()))
        })
    }

    pub fn field(&self, path: &str, key: &str) -> Option<String> {
        let text = self.text(path)?;
        text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then(|| value.trim().to_owned())
        })
    }
}

/// Opens a regular file for reading without waiting for a pipe's writer or a device.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] for other kinds of file, and those of `open(2)`.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let regular = |is_file: bool| {
        is_file
            .then_some(())
            .ok_or(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
    };
    // Some devices act when they are opened. `O_NONBLOCK` covers a file that becomes a pipe after
    // this line (open(2)).
    regular(fs::metadata(path)?.is_file())?;
    let file =
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    regular(file.metadata()?.is_file())?;
    Ok(file)
}

pub fn parse_cpu_list(list: &str) -> Vec<u32> {
    let range = |part: &str| -> Option<(u32, u32)> {
        match part.trim().split_once('-') {
            Some((first, last)) => Some((first.parse().ok()?, last.parse().ok()?)),
            None => part.trim().parse().ok().map(|cpu| (cpu, cpu)),
        }
    };
    let plausible = |(first, last): &(u32, u32)| first <= last && *last < 1 << 16;
    list.split(',')
        .filter_map(range)
        .filter(plausible)
        .flat_map(|(first, last)| first..=last)
        .collect()
}

/// `2048 kB` of /proc in bytes.
pub fn parse_kib(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the choice that a sysfs file marks with brackets, `always [madvise] never`.
pub fn bracketed(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(chosen, _)| chosen)
}

/// Opens a file past the page cache; reads and writes then need whole, aligned blocks (open(2)).
pub const DIRECT: i32 = libc::O_DIRECT;

/// Returns the ranges of a file that hold data. The rest are holes, or reserved and never written:
/// nothing is read from the disk for them (lseek(2), `SEEK_DATA`).
pub fn data_ranges(file: &File) -> io::Result<Vec<Range<u64>>> {
    let (mut ranges, mut at) = (Vec::new(), 0);
    loop {
        let begin = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Err(rustix::io::Errno::NXIO) => return Ok(ranges),
            begin => begin?,
        };
        at = rustix::fs::seek(file, SeekFrom::Hole(begin))?;
        ranges.push(begin..at);
    }
}

/// Folder in sysfs of a device: `char` or `block`, and its number.
pub fn device_directory(kind: &str, number: u64) -> String {
    format!("sys/dev/{kind}/{}:{}", rustix::fs::major(number), rustix::fs::minor(number))
}

pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// Memory of this host by sysinfo(2), which needs no `/proc`.
pub fn memory_bytes() -> u64 {
    // SAFETY: sysconf takes any name and cannot fault.
    let pages = u64::try_from(unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) }).unwrap_or(0);
    pages.saturating_mul(page_bytes())
}

/// Name of this host (uname(2)), which needs no `/proc`.
pub fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
pub(crate) fn root_with(files: &[(&str, &str)]) -> (tempfile::TempDir, Files) {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let files = Files::below(root.path());
    (root, files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_of_the_kernel() {
        assert_eq!(parse_cpu_list("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(parse_cpu_list(""), []);
        assert_eq!(parse_cpu_list("3-1,x,4294967295,7"), [7]);
    }

    #[test]
    fn sizes_and_choices_of_sysfs() {
        assert_eq!(parse_kib("2048 kB"), Some(2 << 20));
        assert_eq!(bracketed("always [madvise] never"), Some("madvise"));
        assert_eq!(bracketed("none"), None);
    }

    #[test]
    fn files_are_read_below_the_root() {
        let cpu = "processor : 0\nmodel name\t: Test CPU\n";
        let (_root, files) = root_with(&[("proc/cpuinfo", cpu)]);
        assert_eq!(files.field("proc/cpuinfo", "model name").as_deref(), Some("Test CPU"));
        assert_eq!(files.text("proc/none"), None);
        assert_eq!(files.names("proc"), ["cpuinfo"]);
    }

    #[test]
    fn only_regular_files_are_opened_and_a_pipe_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let (file, pipe) = (folder.path().join("file"), folder.path().join("pipe"));
        fs::write(&file, "").unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(open_regular(&file).is_ok());
        for other in [&pipe, Path::new("/dev/zero"), folder.path()] {
            assert_eq!(
                open_regular(other).unwrap_err().kind(),
                io::ErrorKind::InvalidInput,
                "{}",
                other.display()
            );
        }
    }

    #[test]
    fn device_numbers_are_split_as_the_kernel_does() {
        assert_eq!(device_directory("block", 0xFE01), "sys/dev/block/254:1");
        // makedev(259, 0x12345): the minor's upper bits lie above the major's lower ones.
        assert_eq!(device_directory("char", 0x1231_0345), format!("sys/dev/char/259:{}", 0x12345));
    }
}
