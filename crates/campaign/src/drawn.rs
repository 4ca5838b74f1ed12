//! Paths drawn at random: those against which a calibration checks its predictions, and those of their validation.

use daqmeter_stats::simulated::Random;

/// A path that was drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct DrawnPath {
    /// Its file.
    pub text: String,
    /// Whether its threads are pinned.
    pub is_pinned: bool,
    /// At which share of its largest rate it runs when it runs at a rate.
    pub load: f64,
}

/// Share of the largest rate: from idle to nearly full.
const LOADS: (f64, f64) = (0.2, 0.9);
/// Blocks: with the fourfold width of a conversion to f64 still within what is calibrated.
const BLOCK_BYTES: (f64, f64) = (4096.0, 262_144.0);
/// Work of a stage that stands for another.
const WORK_NS: (f64, f64) = (2e3, 2e5);

/// Draws a path of 2 to 5 elements. Each second one is pinned, every thread to any of these CPUs.
pub fn drawn_path(random: &mut Random, cpus: &[u32]) -> DrawnPath {
    let block_bytes = (log_between(random, BLOCK_BYTES) / 64.0).round() * 64.0;
    let buffers = [2, 4, 8, 16][below(random, 4)];
    let source = match below(random, 3) {
        0 => "kind = \"file\"\npath = \"/proc/self/exe\"\ncached = true\n",
        _ => "kind = \"memory\"\n",
    };
    let mut text = format!(
        "title = \"drawn\"\nblock = \"{block_bytes}\"\nbuffers = {buffers}\nlossless = true\n[source]\n{source}"
    );
    let mut has_two = false;
    let mut takes_samples = true;
    for _ in 0..below(random, 4) {
        let stage = stage(random, takes_samples);
        takes_samples &= !stage.starts_with("kind = \"convert\"");
        // One on either side of a row of several threads.
        let can_share = !stage.contains("unix") && !stage.contains("tcp") && !has_two;
        let threads = match can_share && below(random, 4) == 0 {
            true => "threads = 2\n",
            false => "",
        };
        has_two |= !threads.is_empty();
        text.push_str(&format!("[[stage]]\n{stage}{threads}"));
    }
    text.push_str("[sink]\nkind = \"read\"\n");
    let (from, to) = LOADS;
    let is_pinned = below(random, 2) == 0 && !cpus.is_empty();
    if is_pinned {
        text = pinned(&text, random, cpus);
    }
    DrawnPath { text, is_pinned, load: from + (to - from) * random.uniform() }
}

/// The same path with CPUs for both threads that an element may have.
fn pinned(text: &str, random: &mut Random, cpus: &[u32]) -> String {
    let line = |line: &str| match line.starts_with("kind = ") {
        true => {
            let [one, other] = [(); 2].map(|()| cpus[below(random, cpus.len())]);
            format!("{line}\ncpus = [{one}, {other}]\n")
        }
        false => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

fn stage(random: &mut Random, takes_samples: bool) -> String {
    match below(random, 6) {
        0 => "kind = \"checksum\"\n".to_owned(),
        1 => "kind = \"unix\"\n".to_owned(),
        2 => "kind = \"tcp\"\n".to_owned(),
        3 => format!("kind = \"work\"\ntime = \"{:.0}ns\"\n", log_between(random, WORK_NS)),
        4 if takes_samples => "kind = \"convert\"\nfunction = 3\nscale_factor = 3e-5\n".to_owned(),
        _ => "kind = \"copy\"\n".to_owned(),
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small counts")]
fn below(random: &mut Random, bound: usize) -> usize {
    (random.uniform() * bound as f64) as usize
}

fn log_between(random: &mut Random, (from, to): (f64, f64)) -> f64 {
    from * (to / from).powf(random.uniform())
}

#[cfg(test)]
mod tests {
    use daqmeter_path::Path;

    use super::*;

    #[test]
    fn every_path_that_is_drawn_can_be_read_and_has_a_shape() {
        let mut random = Random::new(7);
        for _ in 0..300 {
            let drawn = drawn_path(&mut random, &[0, 1]);
            let path = Path::parse(&drawn.text, "drawn.toml");
            let path = path.unwrap_or_else(|error| panic!("{error}\n{}", drawn.text));
            let shape = path.shape().unwrap();
            let has_pins = shape.rows.iter().all(|row| !row.cpus.is_empty());
            assert_eq!(has_pins, drawn.is_pinned, "{}", drawn.text);
            assert!(
                shape.rows.iter().all(|row| (4096..=1 << 20).contains(&row.bytes)),
                "{shape:?}"
            );
        }
    }
}
