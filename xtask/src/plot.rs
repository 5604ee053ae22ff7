//! Draws docs/plots/*.svg from the tables in docs/benchmarks.md.
//!
//! The figures come only from the page, so that plot and page cannot disagree. Bars are ratios to
//! nginx, and a line across the end of a bar is the 95 % interval. Light and dark colours follow
//! the reader's colour scheme.

use std::fmt::Write;
use std::path::Path;

const PAGE: &str = "docs/benchmarks.md";
const PLOT: &str = "docs/plots/requests.svg";

/// The heading above the table in the page.
const HEADING: &str = "## Every case, with its bar";

/// The rows of the table to plot: the start of the row, and its label in the plot.
const ROWS: &[(&str, &str)] = &[
    (
        "100 files, 1,000 queries, browsers' fields",
        "what browsers send",
    ),
    ("1 KB, 64 connections, open_file_cache", "1 KB file"),
    (
        "1 KB, 2,000 connections, open_file_cache",
        "1 KB file, 2,000 connections",
    ),
    (
        "1 KB, no open_file_cache on either side",
        "1 KB file, looked at each time",
    ),
    ("a new connection a request", "a new connection each time"),
    ("`return 301`", "a redirect"),
    ("1 MB", "1 MB file"),
    ("100 MB", "100 MB file"),
    (
        "full TLS 1.3 handshake, ECDSA P-256, X25519, and 1 KB",
        "full TLS 1.3 handshake",
    ),
    ("1 KB over kept TLS", "1 KB file over TLS"),
    ("1 MB over TLS", "1 MB file over TLS"),
];

/// Widths and heights, in pixels.
const LABELS: f64 = 210.0;
const SCALE: f64 = 150.0;
const ROW: f64 = 30.0;
const BAR: f64 = 10.0;
const TOP: f64 = 48.0;
const WIDTH: f64 = 720.0;

/// A figure of the table: the median of ratios with its 95 % interval.
#[derive(Debug, PartialEq)]
struct Ratio {
    median: f64,
    low: f64,
    high: f64,
}

/// Draws the plot. With `check`, reports whether it is stale and changes nothing.
pub fn refresh(root: &Path, check: bool) -> Result<(), String> {
    let fresh = fresh(root)?;
    if check {
        if committed(root) == fresh {
            Ok(())
        } else {
            Err(format!("{PLOT} is stale, `make docs` draws it again"))
        }
    } else {
        std::fs::write(root.join(PLOT), fresh).map_err(|error| format!("{PLOT}: {error}"))
    }
}

fn committed(root: &Path) -> String {
    std::fs::read_to_string(root.join(PLOT)).unwrap_or_default()
}

/// Draws the plot from the current page.
fn fresh(root: &Path) -> Result<String, String> {
    let page =
        std::fs::read_to_string(root.join(PAGE)).map_err(|error| format!("{PAGE}: {error}"))?;
    let mut rows = Vec::new();
    for (start, label) in ROWS {
        rows.push((*label, figures(&page, start)?));
    }
    Ok(draw(&rows))
}

/// The figures in a row of the table: those for epoll and io_uring.
fn figures(page: &str, start: &str) -> Result<[Ratio; 2], String> {
    let (_, rest) = page
        .split_once(HEADING)
        .ok_or_else(|| format!("{PAGE}: no heading {HEADING:?}"))?;
    let line = rest
        .lines()
        .find(|line| {
            line.strip_prefix("| ")
                .is_some_and(|row| row.starts_with(&format!("{start} |")))
        })
        .ok_or_else(|| format!("{PAGE}: no row {start:?}"))?;
    let cells: Vec<&str> = line.split('|').map(str::trim).collect();
    let cell = |index: usize| {
        cells
            .get(index)
            .and_then(|cell| ratio(cell))
            .ok_or_else(|| format!("{PAGE}: no ratio in column {index} of {start:?}"))
    };
    Ok([cell(3)?, cell(6)?])
}

/// Parses `2.05 (1.84 to 2.16)`; a remark may follow.
fn ratio(cell: &str) -> Option<Ratio> {
    let (median, rest) = cell.split_once(" (")?;
    let (interval, _) = rest.split_once(')')?;
    let (low, high) = interval.split_once(" to ")?;
    Some(Ratio {
        median: median.parse().ok()?,
        low: low.parse().ok()?,
        high: high.parse().ok()?,
    })
}

fn draw(rows: &[(&str, [Ratio; 2])]) -> String {
    let height = TOP + ROW * rows.len() as f64 + 34.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"Requests for each second of server CPU, Tidegate beside nginx\">\n\
         <style>\n\
         text {{ font: 13px system-ui, sans-serif; fill: #1f2328; }}\n\
         .small {{ font-size: 11px; fill: #59636e; }}\n\
         .end {{ text-anchor: end; }} .middle {{ text-anchor: middle; }}\n\
         .grid {{ stroke: #d1d9e0; }} .nginx {{ stroke: #59636e; stroke-width: 2; }}\n\
         .epoll {{ fill: #0f766e; }} .io_uring {{ fill: #7aa6da; }} .interval {{ stroke: #1f2328; }}\n\
         @media (prefers-color-scheme: dark) {{\n\
         text {{ fill: #e6edf3; }} .small {{ fill: #9198a1; }}\n\
         .grid {{ stroke: #3d444d; }} .nginx {{ stroke: #9198a1; }}\n\
         .epoll {{ fill: #2dd4bf; }} .io_uring {{ fill: #4c7fb8; }} .interval {{ stroke: #e6edf3; }}\n\
         }}\n\
         </style>\n"
    );
    let bottom = height - 30.0;
    let at = |ratio: f64| LABELS + ratio * SCALE;
    for step in 0..=3 {
        let ratio = f64::from(step);
        let (x, class) = (at(ratio), if step == 1 { "nginx" } else { "grid" });
        let name = match step {
            0 => "0".to_owned(),
            1 => "nginx".to_owned(),
            _ => format!("{step} times"),
        };
        // Writing to a string cannot fail.
        let _ = write!(
            svg,
            "<line class=\"{class}\" x1=\"{x}\" x2=\"{x}\" y1=\"{}\" y2=\"{bottom}\"/>\n\
             <text class=\"small middle\" x=\"{x}\" y=\"{}\">{name}</text>\n",
            TOP - 6.0,
            TOP - 12.0
        );
    }
    for (index, (label, engines)) in rows.iter().enumerate() {
        let y = TOP + ROW * index as f64;
        let _ = writeln!(
            svg,
            "<text class=\"end\" x=\"{}\" y=\"{}\">{label}</text>",
            LABELS - 10.0,
            y + BAR + 4.0
        );
        for (line, (class, ratio)) in ["epoll", "io_uring"].iter().zip(engines).enumerate() {
            let y = y + line as f64 * (BAR + 1.0);
            let middle = y + BAR / 2.0;
            let _ = write!(
                svg,
                "<rect class=\"{class}\" x=\"{LABELS}\" y=\"{y}\" width=\"{:.1}\" height=\"{BAR}\"/>\n\
                 <line class=\"interval\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle}\" y2=\"{middle}\"/>\n\
                 <text class=\"small\" x=\"{:.1}\" y=\"{}\">{:.2}</text>\n",
                ratio.median * SCALE,
                at(ratio.low),
                at(ratio.high),
                at(ratio.high) + 5.0,
                y + BAR - 1.0,
                ratio.median
            );
        }
    }
    let y = height - 10.0;
    let _ = write!(
        svg,
        "<rect class=\"epoll\" x=\"{LABELS}\" y=\"{}\" width=\"10\" height=\"10\"/>\n\
         <text class=\"small\" x=\"{}\" y=\"{y}\">epoll</text>\n\
         <rect class=\"io_uring\" x=\"{}\" y=\"{}\" width=\"10\" height=\"10\"/>\n\
         <text class=\"small\" x=\"{}\" y=\"{y}\">io_uring; the lines are 95 % intervals</text>\n</svg>\n",
        y - 9.0,
        LABELS + 15.0,
        LABELS + 65.0,
        y - 9.0,
        LABELS + 80.0
    );
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_plot_has_the_figures_of_the_page() {
        let root = crate::repository();
        assert!(
            committed(&root) == fresh(&root).unwrap(),
            "{PLOT} is stale, `make docs` draws it again"
        );
    }

    #[test]
    fn a_ratio_has_a_median_and_an_interval() {
        let expected = Ratio {
            median: 2.06,
            low: 1.84,
            high: 2.13,
        };
        assert_eq!(ratio("2.06 (1.84 to 2.13), below"), Some(expected));
        assert_eq!(ratio("1.5, median 1.7"), None);
    }
}
