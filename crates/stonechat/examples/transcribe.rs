//! Prints the segments of a recording with their times: `transcribe [RECORDING [MODEL]]`.

use std::io::{Write, stdout};

use stonechat::{Error, Whisper};

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let recording = args.next().unwrap_or("talk.mp3".into());
    let whisper = Whisper::open(args.next().unwrap_or("base".into()))?;
    for segment in whisper.transcribe(recording) {
        let segment = segment?;
        if writeln!(stdout(), "{:7.2} s {}", segment.start, segment.text.trim()).is_err() {
            break;
        }
    }
    Ok(())
}
