//! Rust files and lines that are compiled for tests only.

/// Modules in files of their own that are declared under `#[cfg(test)]`.
#[derive(Debug)]
pub(crate) struct TestModules {
    /// Paths without `.rs`.
    paths: Vec<String>,
}

impl TestModules {
    /// The modules that `files`, paths and texts, declare.
    pub(crate) fn of<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        Self { paths: files.flat_map(|(path, text)| declared(path, text)).collect() }
    }

    /// Whether the file is one of them or below one.
    pub(crate) fn has(&self, path: &str) -> bool {
        let is_below = |rest: &str| rest == ".rs" || rest.starts_with('/');
        self.paths.iter().any(|module| path.strip_prefix(module.as_str()).is_some_and(is_below))
    }
}

fn declared(path: &str, text: &str) -> Vec<String> {
    let Some(stem) = path.strip_suffix(".rs") else { return Vec::new() };
    let parent = stem.rsplit_once('/').map_or("", |(parent, _)| parent);
    let folder = if stem.ends_with("/lib") || stem.ends_with("/main") { parent } else { stem };
    let is_test = test_lines(text);
    let lines = text.lines().zip(is_test).filter(|(_, is_test)| *is_test);
    let declared = lines.filter_map(|(line, _)| {
        let name = line.strip_suffix(';')?.trim_start().trim_start_matches("pub(crate) ");
        name.strip_prefix("mod ").map(|name| format!("{folder}/{name}"))
    });
    declared.collect()
}

/// For each line of Rust, whether it is part of an item under `#[cfg(test)]`.
pub(crate) fn test_lines(text: &str) -> Vec<bool> {
    let mut is_test = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let attribute = line.trim_start();
        is_test.push(attribute == "#[cfg(test)]");
        if attribute != "#[cfg(test)]" {
            continue;
        }
        // An item of one line, or one whose last brace stands in the column of its attribute.
        let last = format!("{}}}", &line[..line.len() - attribute.len()]);
        let mut is_open = false;
        for line in lines.by_ref() {
            is_test.push(true);
            let is_before = ["#[", "//"].iter().any(|start| line.trim_start().starts_with(start));
            let is_one_line = !is_open && !is_before && line.ends_with([';', ',', '}']);
            is_open |= !is_before;
            if is_one_line || line.starts_with(&last) {
                break;
            }
        }
    }
    is_test
}
