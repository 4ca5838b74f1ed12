//! Closed forms of queueing theory: exact where their assumptions hold, and what the simulator is checked against.
//!
//! Rates are per second, times in seconds, variances in seconds squared. A queue that cannot keep up has an infinite wait.

/// Mean wait before service with Poisson arrivals and one server (Pollaczek and Khinchine): `rate` of arrivals, mean and variance of
/// the service. M/M/1 has the variance `mean^2`, M/D/1 has 0.
pub fn mg1_wait_s(rate: f64, mean_s: f64, variance_s2: f64) -> f64 {
    let load = rate * mean_s;
    match load < 1.0 {
        true => rate * (mean_s * mean_s + variance_s2) / (2.0 * (1.0 - load)),
        false => f64::INFINITY,
    }
}

/// The same where the server, whenever it finds nothing to do, leaves for a time of that mean and variance and leaves again if there
/// is still nothing (multiple vacations, Levy and Yechiali 1975): a reader that sleeps and looks.
pub fn mg1_vacations_wait_s(
    rate: f64,
    service: (f64, f64),
    vacation_mean_s: f64,
    vacation_variance_s2: f64,
) -> f64 {
    let residual =
        (vacation_mean_s * vacation_mean_s + vacation_variance_s2) / (2.0 * vacation_mean_s);
    mg1_wait_s(rate, service.0, service.1) + residual
}

/// Mean wait with Poisson arrivals, exponential service and several servers (Erlang's C).
pub fn mmc_wait_s(rate: f64, mean_s: f64, servers: u32) -> f64 {
    let (offered, c) = (rate * mean_s, f64::from(servers));
    if offered >= c {
        return f64::INFINITY;
    }
    // Erlang's B by recursion, which stays within 0 and 1.
    let blocked = (1..=servers).fold(1.0, |b, n| offered * b / (f64::from(n) + offered * b));
    let waits = blocked / (1.0 - offered / c * (1.0 - blocked));
    waits * mean_s / (c - offered)
}

/// Mean wait of items that come every `period_s`, take `service_s`, and find a server that sleeps for `sleep_s` whenever it has nothing
/// to do. Exact where the cycle is a whole number of periods and the first item of each cycle comes `phase_s` after the server fell
/// asleep, early enough that the server finds all items of the cycle; none otherwise.
pub fn dd1_vacations_wait_s(
    period_s: f64,
    service_s: f64,
    sleep_s: f64,
    phase_s: f64,
) -> Option<f64> {
    let items = (sleep_s / (period_s - service_s)).round();
    let is_whole = (items * (period_s - service_s) / sleep_s - 1.0).abs() < 1e-9;
    let last_s = sleep_s - phase_s - (items - 1.0) * (period_s - service_s);
    let is_exact = service_s < period_s && is_whole && phase_s > 0.0 && last_s >= 0.0;
    is_exact.then(|| sleep_s - phase_s - (items - 1.0) * (period_s - service_s) / 2.0)
}

/// Throughput (per second) and mean number at each station of a closed network with so many items, by exact mean value analysis
/// (Reiser and Lavenberg 1980): demands in seconds of stations with one server (exponential, first come first served), and the time
/// of a delay that nobody waits for.
pub fn closed_network(demands_s: &[f64], delay_s: f64, items: u32) -> (f64, Vec<f64>) {
    let mut queues = vec![0.0; demands_s.len()];
    let mut rate = 0.0;
    for n in 1..=items {
        let times: Vec<f64> =
            demands_s.iter().zip(&queues).map(|(demand, queue)| demand * (1.0 + queue)).collect();
        rate = f64::from(n) / (delay_s + times.iter().sum::<f64>());
        queues = times.iter().map(|time| rate * time).collect();
    }
    (rate, queues)
}

/// What leaves a full token bucket within a time: at most `bucket` at once and `rate` per second after that.
pub fn token_bucket(bucket: f64, rate: f64, time_s: f64) -> f64 {
    bucket + rate * time_s
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, wanted: f64) {
        assert!((found / wanted - 1.0).abs() < 1e-9, "{found}, {wanted}");
    }

    #[test]
    fn the_forms_give_what_textbooks_give() {
        // M/M/1: load / (service rate - arrival rate).
        near(mg1_wait_s(0.8, 1.0, 1.0), 4.0);
        // M/D/1 waits half as long.
        near(mg1_wait_s(0.8, 1.0, 0.0), 2.0);
        near(mmc_wait_s(0.8, 1.0, 1), 4.0);
        // M/M/2 at a load of 0.75: Erlang's C is 9/14.
        near(mmc_wait_s(1.5, 1.0, 2), 9.0 / 14.0 / 0.5);
        assert_eq!(mmc_wait_s(2.0, 1.0, 2), f64::INFINITY);
        assert_eq!(mg1_wait_s(1.0, 1.0, 0.0), f64::INFINITY);
    }

    #[test]
    fn a_closed_network_of_equal_stations_is_known() {
        // n items at m equal stations: n / (n + m - 1) / demand.
        let (rate, queues) = closed_network(&[0.5, 0.5, 0.5], 0.0, 4);
        near(rate, 4.0 / 6.0 / 0.5);
        near(queues.iter().sum(), 4.0);
        near(closed_network(&[], 2.0, 3).0, 1.5);
    }

    #[test]
    fn sleeping_servers_are_refused_where_the_form_does_not_hold() {
        // Ten items per cycle of 100 s: waits from 55 s down to 1 s.
        near(dd1_vacations_wait_s(10.0, 4.0, 60.0, 5.0).unwrap(), 28.0);
        assert_eq!(dd1_vacations_wait_s(10.0, 4.0, 61.0, 5.0), None);
        assert_eq!(dd1_vacations_wait_s(10.0, 4.0, 60.0, 7.0), None);
        near(token_bucket(100.0, 10.0, 3.0), 130.0);
    }
}
