//! Ownership of the channels: the file that set the policy may use them, and no other client.

use std::fs;
use std::path::Path;

use daqmeter_sys::memory::{Buffer, Pages};
use daqmeter_sys::uapi::{COPY_DEVICE, Copy, CopyDevice, Policy};

use crate::common::{Verdict, device, dma, errno, expect, nothing_pinned, round};

const BUSY: Option<i32> = Some(16);

/// Checks that only the file that set the policy may change, end or use it. An impossible change
/// leaves the policy, its number and its counts in force.
pub(crate) fn owned() -> Verdict {
    let owner = device(1);
    let other = CopyDevice::open(Path::new(COPY_DEVICE)).unwrap();
    let policy = |policy, high_channels| Policy {
        policy,
        high_channels,
        quantum_ns: 30_000,
        window_ns: 90_000,
        ..Policy::default()
    };
    let mut buffer = Buffer::new(4096, Pages::Base).unwrap();
    let mut number = |device: &CopyDevice| {
        let mut copy = dma(4096, 1, 0, 0);
        let copied = device.copy(&mut copy, &mut buffer, 0);
        copied.map(|()| copy.policy_number).map_err(|error| error.errno())
    };
    let first = number(&owner).map_err(|errno| format!("the owner's copy: {errno:?}"))?;
    let set = |device: &CopyDevice, to| errno(device.set_policy(to));
    expect("another policy of another program", set(&other, policy(2, 1)), BUSY)?;
    expect("the end by another program", set(&other, policy(0, 0)), BUSY)?;
    expect("a DMA copy of another program", number(&other), Err(BUSY))?;
    let mut cpu = Copy { by: 0, ..dma(4096, 1, 0, 0) };
    let mut own = Buffer::new(4096, Pages::Base).unwrap();
    expect("its copy by CPU", errno(other.copy(&mut cpu, &mut own, 0)), None)?;
    drop(other);
    expect("the policy after all that", number(&owner), Ok(first))?;

    // Channel 40 does not exist.
    expect("a policy that cannot be", set(&owner, policy(3, 1 << 40)), Some(22))?;
    expect("the policy before it", number(&owner), Ok(first))?;
    expect("its copies", owner.channel(0).unwrap().copies, 3)?;
    let second = owner.set_policy(policy(3, 1))?;
    expect("another number", second != first, true)?;
    expect("a copy of the new policy", number(&owner), Ok(second))?;
    round(&owner, &mut dma(50_001, 1, 1, 1), 5)?;
    nothing_pinned(&owner)?;
    drop(owner);
    let heir = device(2);
    expect("the policy is free again", number(&heir).is_ok_and(|it| it > second), true)?;
    nothing_pinned(&heir)?;
    Ok("EBUSY for another program; a change that cannot be changes nothing".to_owned())
}

/// Checks that the kernel's own client of public channels (async_tx, loaded by the script) has no
/// softdma channel. A softdma channel cannot be unbound.
pub(crate) fn private() -> Verdict {
    let used = |channel: &fs::DirEntry| {
        let used = fs::read_to_string(channel.path().join("in_use")).unwrap();
        used.trim() != "0"
    };
    let channels: Vec<_> = fs::read_dir("/sys/class/dma").unwrap().flatten().collect();
    expect("there are channels", channels.is_empty(), false)?;
    let users = channels.iter().filter(|channel| used(channel)).count();
    expect("channels that the kernel took for itself", users, 0)?;
    let unbind = Path::new("/sys/bus/platform/drivers/softdma/unbind");
    expect("softdma can be unbound", unbind.exists(), false)?;
    Ok(format!("{} channels, none taken, none can be unbound", channels.len()))
}
