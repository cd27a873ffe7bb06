//! Transcribes recordings at once, WINDOWS of them in a batch: `recordings MODEL WINDOWS AUDIO...`.
#![expect(clippy::print_stdout, reason = "an example prints")]

use std::time::Instant;

use stonechat::Whisper;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mut arg = || args.next().ok_or("expected MODEL WINDOWS AUDIO...");
    let (model, n_windows) = (arg()?, arg()?.parse()?);
    let whisper = Whisper::builder().parallel(n_windows).open(model)?;
    let started = Instant::now();
    let jobs: Vec<_> = args.map(|path| (whisper.transcribe(&path), path)).collect();
    for (job, path) in jobs {
        println!("{path}:{}", job.wait()?.text);
    }
    println!("{:.2} s", started.elapsed().as_secs_f64());
    Ok(())
}
