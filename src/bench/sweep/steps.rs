//! Parses lists of steps from the command line: `1,10,20`, or `1,10,…,280` for equidistant numbers.

/// Maximum number of steps in a sweep.
const STEPS_MAX: usize = 1000;

/// The steps of a sweep, in increasing order.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Steps(pub(in super::super) Vec<f64>);

/// Parses whole numbers of connections.
pub(in super::super) fn connections(text: &str) -> Result<Steps, String> {
    let steps = parse(text)?;
    let whole = |step: &f64| step.fract() == 0.0 && (1.0..=1e6).contains(step);
    if steps.0.iter().all(whole) {
        Ok(steps)
    } else {
        Err("numbers of connections from 1 to 1000000 are expected".to_owned())
    }
}

pub(super) fn rates(text: &str) -> Result<Steps, String> {
    let steps = parse(text)?;
    if steps.0.iter().all(|step| (0.001..=1e8).contains(step)) {
        Ok(steps)
    } else {
        Err("numbers of requests a second are expected".to_owned())
    }
}

fn parse(text: &str) -> Result<Steps, String> {
    let fault = || "rising numbers are expected, such as 1,10,20 or 1,10,...,280".to_owned();
    let mut steps: Vec<f64> = Vec::new();
    let mut words = text.split(',').map(str::trim);
    while let Some(word) = words.next() {
        if word == "..." || word == "…" {
            let end = words.next().and_then(number).ok_or_else(fault)?;
            let [.., before, last] = steps[..] else {
                return Err(fault());
            };
            let count = ((end - last) / (last - before)).ceil();
            if !(0.0..STEPS_MAX as f64).contains(&count) {
                return Err(fault());
            }
            let between = (1..count as usize).map(|step| last + (last - before) * step as f64);
            steps.extend(between);
            steps.push(end);
        } else {
            steps.push(number(word).ok_or_else(fault)?);
        }
    }
    let rising = steps.windows(2).all(|two| two[0] < two[1]);
    if rising && !steps.is_empty() && steps.len() <= STEPS_MAX {
        Ok(Steps(steps))
    } else {
        Err(fault())
    }
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges() {
        let steps = |text| parse(text).map(|steps| steps.0);
        assert_eq!(steps("5"), Ok(vec![5.0]));
        assert_eq!(steps("1, 2,4,8"), Ok(vec![1.0, 2.0, 4.0, 8.0]));
        assert_eq!(steps("1,3,...,8"), Ok(vec![1.0, 3.0, 5.0, 7.0, 8.0]));
        assert_eq!(steps("1,2,…,4,10"), Ok(vec![1.0, 2.0, 3.0, 4.0, 10.0]));
        // The first example in the help text.
        let many = steps("1,10,…,280").unwrap();
        assert_eq!((many.len(), many[2], many[31]), (32, 19.0, 280.0));
    }

    #[test]
    fn faults() {
        for text in [
            "",
            "x",
            "2,1",
            "1,1",
            "1,...,9",
            "...,9",
            "1,2,...",
            "1,2,...,1",
            "1,2,...,9999",
            "nan",
            "1,inf",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(connections("1.5").is_err() && connections("0,1").is_err());
        assert!(rates("0.5,1").is_ok() && rates("0").is_err());
    }
}
