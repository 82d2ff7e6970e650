//! Files and headings that the pages lead to are there.

use std::fs;
use std::path::{Path, PathBuf};

use sandkasten_e2e::lab;

/// All pages of the checkout.
fn pages() -> Vec<PathBuf> {
    let root = lab::checkout();
    let mut pages = Vec::new();
    for folder in [root.clone(), root.join("docs"), root.join("docs/adr")] {
        let entries = fs::read_dir(&folder).expect("a folder of pages");
        let files = entries.map(|entry| entry.expect("an entry").path());
        pages.extend(files.filter(|file| file.extension().is_some_and(|ending| ending == "md")));
    }
    pages
}

/// A heading as the part of an address behind `#`, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let heading = heading.trim().to_lowercase().replace(' ', "-");
    heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
}

fn anchors(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap_or_default();
    let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
    headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut lost = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        for part in text.split("](").skip(1) {
            let link = part.split(')').next().unwrap_or_default();
            if link.is_empty() || link.contains("://") || link.contains(char::is_whitespace) {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let folder = page.parent().expect("a folder");
            let target = if file.is_empty() { page.clone() } else { folder.join(file) };
            let is_there = target.exists()
                && (heading.is_empty() || anchors(&target).iter().any(|known| known == heading));
            if !is_there {
                lost.push(format!("{} leads to {link}", page.display()));
            }
        }
    }
    assert!(lost.is_empty(), "{lost:#?}");
}
