//! Data of the published 50 s of read-out, made and checked: their counts are the published ones.

use anyhow::{Context, Result, ensure};
use daqmeter_vm::shell::{StepDone, daqmeter};
use serde_json::Value;

/// Triggers in the published run, and each E-link's chunks by its link.
const TRIGGERS: u64 = 49_748_082;
const CHUNKS: [u64; 3] = [49_648_974, 49_724_208, 49_118_639];
const BLOCKS: u64 = 34_262_333;

fn checked(words: &str) -> Result<Vec<Value>> {
    let check = daqmeter("readout check --scenario nikhef --level 2 --json").words(words);
    let text = check.output()?;
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

fn rows(channel: &Value) -> Result<&Vec<Value>> {
    channel["checked"]["rows"].as_array().context("no rows")
}

/// Checks one channel with the published counts; returns its E-links and its blocks.
fn counted(channel: &Value) -> Result<(usize, u64)> {
    let rows = rows(channel)?;
    for (nth, row) in rows.iter().enumerate() {
        let wanted = CHUNKS.get(nth / 8).copied().unwrap_or(TRIGGERS);
        ensure!(row["chunks"] == wanted, "{row}");
    }
    Ok((rows.len(), channel["checked"]["blocks"].as_u64().context("no blocks")?))
}

fn complete(channels: &[Value]) -> Result<usize> {
    let elinks: usize = channels.iter().filter_map(|channel| Some(rows(channel).ok()?.len())).sum();
    let all = (channels.len(), elinks) == (16, 384 + 4);
    ensure!(all, "{} channels with {elinks} E-links", channels.len());
    Ok(elinks)
}

fn block_total(blocks: u64) -> Result<()> {
    ensure!(blocks == BLOCKS, "{blocks} blocks instead of the published {BLOCKS}");
    Ok(())
}

/// Runs two channels for the whole time, and all sixteen for a second's worth.
pub(crate) fn two_channels() -> Result<StepDone> {
    for (name, wanted) in [("0.0", 25), ("3.1", 24)] {
        let found = checked(&format!("--triggers {TRIGGERS} --channels {name}"))?;
        ensure!(found.len() == 1, "{} channels", found.len());
        let (elinks, blocks) = counted(&found[0]).with_context(|| name.to_owned())?;
        ensure!(elinks == wanted, "{name}: {elinks} E-links");
        if name == "0.0" {
            block_total(blocks)?;
        }
        println!(
            "channel {name}: {elinks} E-links, each with the published count; {blocks} blocks"
        );
    }
    let elinks = complete(&checked("--triggers 1M")?)?;
    println!("{elinks} E-links of 16 channels for 1M triggers: nothing missing, nothing wrong");
    Ok(StepDone::Ran)
}

/// Runs all channels for the whole time: about eight minutes of CPU.
pub(crate) fn all_channels() -> Result<()> {
    let channels = checked(&format!("--triggers {TRIGGERS}"))?;
    let counts: Vec<(usize, u64)> = channels.iter().map(counted).collect::<Result<_>>()?;
    let elinks = complete(&channels)?;
    block_total(counts[0].1)?;
    println!("{elinks} E-links, each with the published count; {BLOCKS} blocks in device 0, DMA 0");
    Ok(())
}
