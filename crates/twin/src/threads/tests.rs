use proptest::prelude::*;

use super::*;

fn row(threads: usize, work_ns: f64) -> ThreadRow {
    ThreadRow { threads, cpus: Vec::new(), work_ns, ..ThreadRow::default() }
}

fn chain(rows: Vec<ThreadRow>, cpus: u32) -> Threads {
    Threads::without_costs(rows, cpus, 2000)
}

fn block_ns(model: &Threads) -> f64 {
    let outcome = run_threads(model, 1);
    outcome.seconds * 1e9 / outcome.blocks as f64
}

fn near(found: f64, wanted: f64) {
    assert!((found / wanted - 1.0).abs() < 0.01, "{found}, {wanted}");
}

#[test]
fn with_a_cpu_each_the_slowest_row_gives_the_rate_and_threads_share_it() {
    let rows = vec![row(1, 1000.0), row(1, 5000.0), row(1, 2000.0)];
    let model = chain(rows, 8);
    near(block_ns(&model), 5000.0);
    let outcome = run_threads(&model, 1);
    near(outcome.cpu[0], 0.2);
    near(outcome.cpu[1], 1.0);
    let shared = chain(vec![row(1, 1000.0), row(2, 5000.0), row(1, 2000.0)], 8);
    near(block_ns(&shared), 2500.0);
}

#[test]
fn on_one_cpu_the_works_add_up() {
    let rows = vec![row(1, 1000.0), row(1, 5000.0), row(1, 2000.0)];
    near(block_ns(&chain(rows.clone(), 1)), 8000.0);
    // Pinned threads cannot go elsewhere.
    let mut pinned = chain(rows, 4);
    pinned.rows[0].cpus = vec![2];
    pinned.rows[1].cpus = vec![2];
    near(block_ns(&pinned), 6000.0);
}

#[test]
fn blocks_at_a_rate_take_the_sum_of_the_works_and_are_lost_above_the_largest() {
    let rows = vec![row(1, 1000.0), row(1, 5000.0), row(1, 2000.0)];
    let mut model = chain(rows, 8);
    model.every_ns = Some(20_000.0);
    let outcome = run_threads(&model, 1);
    // The middle of a bucket of the histogram, which is 3 % wide.
    let p99_ns = outcome.latency_ns.quantile(0.99) as f64;
    assert!((p99_ns / 8000.0 - 1.0).abs() < 0.03, "{p99_ns}");
    assert_eq!(outcome.lost, 0);
    (model.every_ns, model.lossless) = (Some(2500.0), false);
    let outcome = run_threads(&model, 1);
    let share = outcome.lost as f64 / (outcome.lost + outcome.blocks) as f64;
    near(share, 0.5);
}

#[test]
fn a_row_that_sleeps_uses_no_cpu_and_wake_ups_delay_each_block() {
    let mut model = chain(vec![row(1, 1000.0), row(1, 1000.0)], 4);
    model.rows[1].asleep_ns = 9000.0;
    near(block_ns(&model), 10_000.0);
    near(run_threads(&model, 1).cpu[1], 0.1);
    let mut idle = chain(vec![row(1, 1000.0), row(1, 1000.0)], 4);
    idle.every_ns = Some(100_000.0);
    idle.wake_ns = Arc::new([20_000]);
    let p50_ns = run_threads(&idle, 1).latency_ns.quantile(0.5) as f64;
    assert!((p50_ns / 42_000.0 - 1.0).abs() < 0.03, "{p50_ns}");
}

#[test]
fn neighbours_on_other_cpus_make_work_dearer_and_wakes_cost_the_one_that_wakes() {
    let mut rows = vec![row(1, 1000.0), row(1, 5000.0), row(1, 2000.0)];
    rows[1].apart_ns = 3000.0;
    let apart = chain(rows.clone(), 8);
    near(block_ns(&apart), 8000.0);
    near(block_ns(&chain(rows.clone(), 1)), 8000.0);
    // One neighbour of two.
    let mut half = chain(rows, 4);
    (half.rows[0].cpus, half.rows[1].cpus, half.rows[2].cpus) = (vec![0], vec![0], vec![1]);
    near(block_ns(&half), 7500.0);
    let mut idle = chain(vec![row(1, 1000.0), row(1, 1000.0)], 2);
    idle.every_ns = Some(100_000.0);
    (idle.timer_cpu_ns, idle.far_sleep_cpu_ns) = (20_000, 5_000);
    idle.far_wakes = Arc::new([(10_000, 3_000), (90_000, 9_000)]);
    (idle.rows[0].cpus, idle.rows[1].cpus) = (vec![0], vec![1]);
    let outcome = run_threads(&idle, 1);
    // A timer, work, and a CPU woken that was idle for more than 90 us; a sleep and work.
    near(outcome.cpu[0], 0.3);
    near(outcome.cpu[1], 0.06);
}

#[test]
fn a_sleep_costs_by_where_the_thread_wakes_up_and_nothing_on_top_at_a_socket() {
    let block_ns_of = |cpus: u32, room: Option<u64>| {
        let mut model = chain(vec![row(1, 1000.0), row(1, 1000.0)], cpus);
        model.buffers = 1;
        (model.sleep_cpu_ns, model.far_sleep_cpu_ns) = (300, 5000);
        model.near_wake_cpu_ns = 100;
        model.rows[0].room = room;
        block_ns(&model)
    };
    // Both work, sleep and wake the other for each block.
    near(block_ns_of(1, None), 2800.0);
    // The consumer still pays for its wait; that of the source is in its work.
    near(block_ns_of(1, Some(1)), 2300.0);
    assert!(block_ns_of(2, None) > 10_000.0);
}

#[test]
fn what_comes_while_a_thread_falls_asleep_is_found_without_a_wake() {
    // The next block comes while the consumer falls asleep, and after it has paid for that once it is behind.
    let mut model = chain(vec![row(1, 1000.0), row(1, 1050.0)], 2);
    (model.sleep_cpu_ns, model.far_sleep_cpu_ns) = (800, 800);
    model.far_wakes = Arc::new([(1, 500)]);
    near(block_ns(&model), 1050.0);
    // A source that takes much longer lets it sleep, and wakes it for each block.
    model.rows[0].work_ns = 10_000.0;
    near(block_ns(&model), 10_500.0);
}

#[test]
fn threads_that_keep_their_cpu_stay_on_one_until_they_were_ready_for_long() {
    let rows = vec![row(1, 1000.0), row(1, 2000.0)];
    let mut model = chain(rows, 2);
    near(block_ns(&model), 2000.0);
    (model.keeps_cpu, model.stay_ns) = (true, 4_000_000);
    near(block_ns(&model), 3000.0);
    model.stay_ns = 2000;
    near(block_ns(&model), 2000.0);
}

#[test]
fn a_stage_that_works_in_place_works_on_while_there_is_no_room_behind_it() {
    let mut model = chain(vec![row(1, 1000.0), row(1, 5000.0), row(1, 5000.0)], 8);
    model.buffers = 1;
    let before = block_ns(&model);
    model.rows[1].in_place = true;
    let after = block_ns(&model);
    assert!(before > 9900.0 && after < 7000.0, "{before} {after}");
}

#[test]
fn what_cannot_run_gives_nothing() {
    let outcome = run_threads(&chain(Vec::new(), 1), 1);
    assert_eq!((outcome.blocks, outcome.latency_ns.count()), (0, 0));
}

prop_compose! {
    fn chains()(
        works in proptest::collection::vec((1..3_usize, 100..50_000_u32), 2..5),
        cpus in 1..4_u32,
        buffers in 1..6_u64,
        stay_ns in 0..300_000_u64,
        sleep_cpu_ns in 0..4000_u64,
    ) -> Threads {
        // Rows of two on either side of rows of one.
        let rows = works.iter().enumerate();
        let rows = rows.map(|(at, (threads, ns))| row(if at % 2 == 1 { *threads } else { 1 }, f64::from(*ns)));
        Threads { buffers, stay_ns, sleep_cpu_ns, far_sleep_cpu_ns: 2 * sleep_cpu_ns, near_wake_cpu_ns: sleep_cpu_ns / 2, wake_ns: Arc::new([5000, 30_000]), ..chain(rows.collect(), cpus) }
    }
}

proptest! {
    /// Operational laws: no rate is above what each row and all CPUs together allow, and nobody works more than all the time.
    #[test]
    fn no_chain_is_faster_than_its_resources(model in chains()) {
        let outcome = run_threads(&model, 3);
        prop_assert_eq!(outcome.blocks, model.blocks - model.warm_up);
        let block_ns = outcome.seconds * 1e9 / outcome.blocks as f64;
        let rows = model.rows.iter().map(|row| row.work_ns / row.threads as f64);
        let all: f64 = model.rows.iter().map(|row| row.work_ns).sum();
        let least_ns = rows.fold(all / model.cpus.len() as f64, f64::max);
        // Blocks that were half done at the end of the warm-up.
        prop_assert!(block_ns > 0.95 * least_ns, "{block_ns} {least_ns}");
        prop_assert!(outcome.cpu.iter().all(|cpu| *cpu <= 1.01));
        let again = run_threads(&model, 3);
        prop_assert_eq!(again.seconds.to_bits(), outcome.seconds.to_bits());
    }
}
