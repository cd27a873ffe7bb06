//! Runs 8 chats and 2 transcriptions in one loop: `engine_loop LLM WHISPER AUDIO AUDIO`.
#![expect(clippy::print_stdout, reason = "an example prints")]

use pollster::block_on;
use stonechat::llm::{Accepted, ChatFormat, Generation, GenerationScratch, Slot, StateOptions};
use stonechat::nn::{Cpu, KvDType};
use stonechat::serde_json::{Map, json};
use stonechat::whisper::{Options, Transcription, WindowDecoder};
use stonechat::{GenerateOptions, audio, formats::ModelFile, llm, whisper};

const TOPICS: [&str; 8] = ["ice", "fire", "rust", "rain", "bees", "salt", "wind", "moss"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mut path = || args.next().ok_or("expected LLM WHISPER AUDIO AUDIO");
    let cpu = Cpu::new(0)?;
    let llm = llm::Model::load(cpu.clone(), &ModelFile::open(path()?)?, |_| {})?;
    let speech = whisper::Model::load(cpu, &ModelFile::open(path()?)?, |_| {})?;
    let n = TOPICS.len();
    let sizes = StateOptions { n_sequences: n, n_outputs: n, ..StateOptions::new(512) };
    let (mut state, format) = (llm.state(sizes)?, ChatFormat::new(&llm, None)?);
    let (mut scratch, mut accepted) = (GenerationScratch::new(&llm), Accepted::default());
    let (mut chats, mut answers) = (Vec::new(), vec![String::new(); n]);
    for topic in TOPICS {
        let message = json!({ "role": "user", "content": format!("What is {topic}?") });
        let prompt = format.tokenize(&llm, &[message], Map::new())?;
        let options = GenerateOptions { n_predict: Some(40), ..Default::default() };
        chats.push(Generation::new(llm.info(), prompt, options)?);
    }
    let options = Options { batch_size: Some(2), ..Options::default() };
    let mut decoder = WindowDecoder::for_options(&speech, &options, KvDType::F16)?;
    let mut start = || -> Result<_, Box<dyn std::error::Error>> {
        Ok(Transcription::new(&speech, audio::decode_file(path()?)?.samples, &options)?)
    };
    let mut runs = [start()?, start()?];
    while runs.iter().any(|run| !run.is_ended()) || chats.iter().any(|c| c.finish().is_none()) {
        let (mut plan, mut rows) = (state.plan(), [0; TOPICS.len()]);
        for (i, chat) in chats.iter_mut().enumerate().filter(|(_, c)| c.finish().is_none()) {
            let n = chat.pending().len().min(sizes.n_batch - plan.n_tokens());
            let (output, n_rows) = chat.output(n);
            plan.add(Slot::new(i), &chat.pending()[..n], output, n_rows)?;
            chat.ran(n);
            rows[i] = n_rows;
        }
        let ticket = plan.run()?;
        let (outputs, mut first) = (block_on(state.outputs(ticket))?, 0);
        for (i, n_rows) in rows.into_iter().enumerate().filter(|(_, n_rows)| *n_rows > 0) {
            chats[i].accept(outputs.rows(first..first + n_rows), &mut scratch, &mut accepted)?;
            answers[i] += &accepted.text;
            first += n_rows;
        }
        for run in &mut runs {
            run.advance(&mut decoder)?;
            std::iter::from_fn(|| run.next_segment()).for_each(|s| println!("{}", s.text));
        }
        block_on(decoder.step())?;
    }
    TOPICS.iter().zip(answers).for_each(|(topic, answer)| println!("{topic}: {answer}"));
    Ok(())
}
