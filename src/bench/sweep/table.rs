//! The steps of a sweep as a text table, as CSV and as JSON.

use load::report::quoted;

use super::points::{Axis, Findings, Point, short};

/// The names of the columns, with units.
pub(super) fn names(axis: Axis) -> Vec<String> {
    let load = axis.words();
    let others = [
        "throughput/s",
        "goodput/s",
        "failed %",
        "refused %",
        "p50 ms",
        "p99 ms",
    ];
    let all = std::iter::once(load).chain(others);
    all.map(str::to_owned).collect()
}

/// The values of one step, in the order of [`names`]. A star marks a step in which the load tester
/// was the bottleneck; a dash stands for a percentile with too few responses.
pub(super) fn row(point: &Point) -> Vec<String> {
    let milliseconds = |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{time:.3}"));
    let star = if point.limits.is_empty() { "" } else { "*" };
    vec![
        short(point.load),
        format!("{}{star}", short(point.throughput)),
        short(point.goodput),
        format!("{:.2}", point.failed * 100.0),
        format!("{:.2}", point.refused * 100.0),
        milliseconds(point.p50),
        milliseconds(point.p99),
    ]
}

/// A line of the text table.
pub(super) fn line(values: &[String]) -> String {
    let mut line = String::new();
    for (place, value) in values.iter().enumerate() {
        let width = if place == 0 { 20 } else { 13 };
        line.push_str(&format!("{value:>width$}"));
    }
    line.push('\n');
    line
}

/// The values of one step with machine-readable names, times in milliseconds and ratios as
/// fractions. `none` stands for a percentile with too few responses.
fn fields(axis: Axis, point: &Point, none: &str) -> [(&'static str, String); 9] {
    let load = match axis {
        Axis::Connections => "connections",
        Axis::Rate => "rate",
    };
    let number = |value: f64| format!("{value:.4}");
    let time = |value: Option<f64>| value.map_or(none.to_owned(), number);
    [
        (load, format!("{}", point.load)),
        ("throughput", number(point.throughput)),
        ("goodput", number(point.goodput)),
        ("failed", number(point.failed)),
        ("refused", number(point.refused)),
        ("p50_ms", time(point.p50)),
        ("p99_ms", time(point.p99)),
        ("succeeded", point.succeeded.to_string()),
        ("tool_was_the_limit", (!point.limits.is_empty()).to_string()),
    ]
}

/// The steps as CSV: a line of names and a line for each step.
pub(super) fn csv(axis: Axis, points: &[Point]) -> String {
    let names = fields(axis, &Point::default(), "")
        .map(|(name, _)| name)
        .join(",");
    let lines = points
        .iter()
        .map(|point| fields(axis, point, "").map(|(_, value)| value).join(",") + "\n");
    format!("{names}\n{}", lines.collect::<String>())
}

/// The sweep as one JSON object: steps, findings, and the conditions of the run.
pub(super) fn json(
    axis: Axis,
    points: &[Point],
    findings: &Findings,
    conditions: &[(String, String)],
) -> String {
    let steps: Vec<String> = points
        .iter()
        .map(|point| {
            let fields = fields(axis, point, "null");
            let fields = fields.map(|(name, value)| format!("\"{name}\":{value}"));
            format!("{{{}}}", fields.join(","))
        })
        .collect();
    let load_at = |place: Option<usize>| {
        let point = place.and_then(|place| points.get(place));
        point.map_or("null".to_owned(), |point| format!("{}", point.load))
    };
    let conditions: Vec<String> = conditions
        .iter()
        .map(|(name, value)| format!("{}:{}", quoted(name), quoted(value)))
        .collect();
    format!(
        "{{\"saturation\":{},\"highest\":{},\"broken\":{},\"steps\":[{}],\"scattered\":{},\"conditions\":{{{}}}}}\n",
        load_at(findings.saturation),
        load_at(findings.highest),
        load_at(findings.broken),
        steps.join(","),
        findings.scatter.is_some(),
        conditions.join(",")
    )
}

#[cfg(test)]
mod tests {
    use super::super::points::Scatter;
    use super::*;

    #[test]
    fn every_step_has_every_column() {
        let point = Point {
            load: 10.0,
            throughput: 1234.5,
            failed: 0.25,
            limits: vec!["x".to_owned()],
            ..Point::default()
        };
        assert_eq!(names(Axis::Rate).len(), row(&point).len());
        assert_eq!(row(&point)[..4], ["10", "1234*", "0", "25.00"]);
        assert_eq!(row(&point)[5..], ["-", "-"]);
        let csv = csv(Axis::Connections, &[point.clone(), point.clone()]);
        let columns: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
        assert_eq!(columns, [9, 9, 9]);
        assert!(csv.contains(",0.0000,,,0,true\n"), "{csv}");
        let timed = Point {
            p50: Some(1.5),
            p99: Some(2.0),
            ..point.clone()
        };
        assert_eq!(row(&timed)[5..], ["1.500", "2.000"]);
        let csv = super::csv(Axis::Rate, &[timed]);
        assert!(csv.contains(",0.0000,1.5000,2.0000,0,true\n"), "{csv}");
        let found = Findings {
            highest: Some(0),
            ..Findings::default()
        };
        let json = json(
            Axis::Rate,
            std::slice::from_ref(&point),
            &found,
            &[("a".to_owned(), "b\"".to_owned())],
        );
        assert!(
            json.starts_with(
                "{\"saturation\":null,\"highest\":10,\"broken\":null,\"steps\":[{\"rate\":10,"
            ),
            "{json}"
        );
        assert!(
            json.ends_with("\"conditions\":{\"a\":\"b\\\"\"}}\n"),
            "{json}"
        );
        assert!(json.contains("\"p50_ms\":null,\"p99_ms\":null,"), "{json}");
        assert!(json.contains("}],\"scattered\":false,"), "{json}");
        let scattered = Findings {
            scatter: Some(Scatter::default()),
            ..found
        };
        let json = super::json(Axis::Rate, &[point], &scattered, &[]);
        assert!(json.starts_with("{\"saturation\":null,"), "{json}");
        assert!(json.contains("}],\"scattered\":true,"), "{json}");
    }
}
