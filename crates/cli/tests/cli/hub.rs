//! Models of a hub: `pull`, `run`, `models`, `show` and `rm`.

use std::fs;
use std::net::TcpListener;

use stonechat::formats::{GgufWriter, ModelFile, TensorInfo};
use stonechat_testkit::TinyWhisper;

use crate::mock_hub::{Faults, Hub, Repository};
use crate::run::{Folder, Ran, finish, workspace};

const NO_FAULTS: Faults =
    Faults { cut_responses: 0, wrong_checksum: false, status: None, etags: &[] };

/// Runs the binary with a hub.
fn with_hub(folder: &Folder, hub: &Hub, arguments: &[&str]) -> Ran {
    finish(folder.command(arguments).env("HF_ENDPOINT", &hub.address).spawn().unwrap())
}

fn whisper_base() -> Repository {
    Repository::new(
        "Systran/faster-whisper-base",
        &[
            ("README.md", b"not wanted"),
            ("config.json", b"{}"),
            ("tokenizer.json", b"{\"a\": 1}"),
            ("tokenizer_config.json", b"{\"eos_token\": \"</s>\"}"),
            ("chat_template.jinja", b"{{ messages }}"),
            ("model.safetensors", b"the weights"),
        ],
    )
}

/// A tiny language model of random weights with a chat template.
fn tiny_llm(template: &str) -> Vec<u8> {
    let path = workspace().join("test-data/golden/llm/llama.gguf");
    let file = ModelFile::open(path).unwrap();
    let mut metadata = file.metadata().clone();
    metadata.set("tokenizer.chat_template", template);
    let tensors = file.tensors().map(|t| TensorInfo::new(t.name, t.dtype, t.shape)).collect();
    let mut writer = GgufWriter::new(Vec::new(), &metadata, tensors).unwrap();
    for tensor in file.tensors() {
        writer.write_tensor(tensor.name, &tensor.data.load().unwrap()).unwrap();
    }
    writer.finish().unwrap()
}

/// Template of a model that answers.
const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}{% endfor %}";
/// Template that tells where it comes from.
const FAILING_TEMPLATE: &str = "{{ raise_exception('the template of this model') }}";

fn smollm2(template: &str) -> Repository {
    let gguf = tiny_llm(template);
    Repository::new(
        "bartowski/SmolLM2-135M-Instruct-GGUF",
        &[
            ("README.md", b"not wanted"),
            ("SmolLM2-135M-Instruct-Q8_0.gguf", &gguf),
            ("SmolLM2-135M-Instruct-Q4_K_M.gguf", &gguf),
        ],
    )
}

#[test]
fn a_folder_is_pulled_whole() {
    let folder = Folder::new("pull");
    let hub = Hub::serve(vec![whisper_base()], NO_FAULTS);
    let ran = with_hub(&folder, &hub, &["pull", "base"]);
    assert_eq!(ran.succeeds().trim(), folder.path("models/base").to_str().unwrap());
    assert_eq!(folder.names("models"), ["base"]);
    let companions = ["tokenizer.json", "tokenizer_config.json"];
    let expected = [&["chat_template.jinja", "config.json", "model.safetensors"][..], &companions];
    assert_eq!(folder.names("models/base"), expected.concat());
    assert_eq!(folder.read("models/base/chat_template.jinja"), "{{ messages }}");
    assert_eq!(folder.read("models/base/model.safetensors"), "the weights");
    // An installed model needs no hub.
    folder.run(&["pull", "base"]).succeeds();
    with_hub(&folder, &hub, &["pull", "Systran/faster-whisper-base:config.json"]).succeeds();
    assert_eq!(folder.read("models/Systran--faster-whisper-base/config.json"), "{}");
}

#[test]
fn run_downloads_a_model_by_name_and_answers() {
    let folder = Folder::new("run");
    let hub = Hub::serve(vec![smollm2(TEMPLATE)], NO_FAULTS);
    let run = ["run", "smollm2:135m", "Say", "hi", "-n", "8", "--temp", "0", "--ignore-eos", "-q"];
    let first = with_hub(&folder, &hub, &run);
    let answer = first.succeeds().to_owned();
    assert!(!answer.trim().is_empty(), "{first:?}");
    let file = "models/bartowski--SmolLM2-135M-Instruct-GGUF/SmolLM2-135M-Instruct-Q4_K_M.gguf";
    assert!(folder.path(file).is_file());
    // The second time, the hub is not asked.
    assert_eq!(folder.run(&run).succeeds(), answer);
    let chat = ["chat", "-m", "smollm2:135m", "-p", "Say hi", "--single-turn"];
    let chat = [&chat[..], &["-n", "8", "--temp", "0", "--ignore-eos", "-q"]].concat();
    assert_eq!(folder.run(&chat).succeeds(), answer);
    assert!(folder.run(&["models"]).succeeds().contains("smollm2:135m"));
    let piped = folder.run_with_input(&["run", "smollm2", "-n", "4", "-q"], b"Say hi\n");
    piped.succeeds();
    let ran = folder.run(&["run", "smollm2"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("no prompt: expected it after the model's name"), "{ran:?}");
    let removed = folder.run(&["rm", "smollm2:135m"]);
    assert!(removed.succeeds().starts_with("removed smollm2:135m ("), "{removed:?}");
    assert_eq!(folder.names("models"), Vec::<String>::new());
    folder.run(&["chat", "smollm2:135m"]).fails("get it with `stonechat pull smollm2:135m`");
}

#[test]
fn gguf_files_are_pulled_by_type_with_all_parts() {
    let folder = Folder::new("pull-gguf");
    let repository = Repository::new(
        "user/repo",
        &[
            ("m-Q4_0.gguf", b"four"),
            ("Q8_0/m-Q8_0-00001-of-00002.gguf", b"first"),
            ("Q8_0/m-Q8_0-00002-of-00002.gguf", b"second"),
            ("mmproj-F16.gguf", b"not wanted"),
        ],
    );
    let empty = Repository::new("user/empty", &[("README.md", b"nothing")]);
    let hub = Hub::serve(vec![repository, empty], NO_FAULTS);
    let pull = |name: &str| with_hub(&folder, &hub, &["pull", name]);
    let path = |file: &str| folder.path("models/user--repo").join(file).display().to_string();
    assert_eq!(pull("user/repo").succeeds().trim(), path("m-Q4_0.gguf"));
    assert_eq!(pull("hf.co/user/repo:q8_0").succeeds().trim(), path("m-Q8_0-00001-of-00002.gguf"));
    let parts = ["m-Q4_0.gguf", "m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"];
    assert_eq!(folder.names("models/user--repo"), parts);
    pull("user/repo:Q6_K").fails("has no weights of type `Q6_K`: expected one of Q4_0, Q8_0");
    pull("user/empty").fails("has no model.safetensors");
    pull("user/missing").fails("there is no such repository or file");
    folder.run(&["pull", "bsae"]).fails("expected user/repo, user/repo:Q4_K_M");
    // The addresses of files, with all parts.
    let part = "resolve/main/Q8_0/m-Q8_0-00001-of-00002.gguf";
    let address = |page: &str| format!("{}/user/repo/{page}", hub.address);
    folder.run(&["rm", "user/repo:Q8_0"]).succeeds();
    assert_eq!(pull(&address(part)).succeeds().trim(), path("m-Q8_0-00001-of-00002.gguf"));
    assert_eq!(folder.names("models/user--repo"), parts);
    assert_eq!(pull(&address("blob/main/m-Q4_0.gguf")).succeeds().trim(), path("m-Q4_0.gguf"));
    assert_eq!(pull(&address("tree/main")).succeeds().trim(), path("m-Q4_0.gguf"));
    pull(&address("resolve/other/m-Q4_0.gguf")).fails("is an address: expected user/repo");
}

#[test]
fn names_of_nothing_are_explained() {
    let folder = Folder::new("names-of-nothing");
    for (name, expected) in [
        ("nosuch", "is called `nosuch`: expected user/repo"),
        ("bsae", "did you mean `base`?"),
        ("lama3.2:3b", "did you mean `llama3.2:3b`?"),
        ("qwen3:5b", "expected one of qwen3:0.6b, qwen3:1.7b"),
        ("gemma4", "`gemma4` does not run here yet: expected an architecture of llama, "),
        ("qwen3.5:9b", "got that of Qwen3.5"),
        ("nomic-embed-text", "got that of BERT"),
        ("https://example.org/x.gguf", "`https://example.org/x.gguf` is an address"),
    ] {
        folder.run(&["pull", name]).fails(expected);
    }
    for (name, expected) in [
        ("bsae", "did you mean `base`?"),
        ("gemma4", "`gemma4` does not run here yet"),
        ("lfm2:1.2b", "got that of LFM2"),
        ("https://example.org/x.gguf", "is an address"),
    ] {
        folder.run(&["run", name, "hi"]).fails(expected);
        folder.run(&["show", name]).fails(expected);
    }
}

#[test]
fn dashes_stand_for_colons_in_names() {
    let folder = Folder::new("dashed-names");
    for place in ["smollm2-135m.gguf", "bartowski--SmolLM2-360M-Instruct-GGUF/m-Q4_K_M.gguf"] {
        let path = folder.path("models").join(place);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, tiny_llm(TEMPLATE)).unwrap();
    }
    let find = |name: &str| {
        let ran = folder.run(&["show", name, "--json"]);
        let json: serde_json::Value = serde_json::from_str(ran.succeeds()).unwrap();
        json["path"].as_str().unwrap().to_owned()
    };
    let place = |name: &str| folder.path("models").join(name).display().to_string();
    for name in ["smollm2-135m", "smollm2:135m", "smollm2", "SmolLM2:135M"] {
        assert_eq!(find(name), place("smollm2-135m.gguf"), "{name}");
    }
    for name in ["smollm2:360m", "smollm2-360m"] {
        let expected = place("bartowski--SmolLM2-360M-Instruct-GGUF/m-Q4_K_M.gguf");
        assert_eq!(find(name), expected, "{name}");
    }
    // The hub is not asked.
    folder.run(&["pull", "smollm2:135m"]).succeeds();
    folder.run(&["show", "smollm2:135m-q8_0"]).fails("no model");
}

#[test]
fn sizes_agree() {
    let folder = Folder::new("sizes-agree");
    fs::create_dir_all(folder.path("models/mine")).unwrap();
    folder.write("models/mine/model.gguf", &TinyWhisper::default().gguf());
    folder.write("models/mine/tokenizer.json", &[b' '; 3000]);
    folder.write("models/single.gguf", &tiny_llm(TEMPLATE));
    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_str(folder.run(arguments).succeeds()).unwrap()
    };
    let listed = json(&["models", "--json"]);
    let models = listed["models"].as_array().unwrap();
    assert_eq!(models.len(), 2);
    for model in models {
        let shown = json(&["show", model["name"].as_str().unwrap(), "--json"]);
        assert_eq!(shown["bytes"], model["bytes"], "{shown}");
    }
}

#[test]
fn pulled_models_chat_with_their_own_templates() {
    let folder = Folder::new("pull-templates");
    let hf = workspace().join("test-data/golden/llm/llama-hf");
    let names = ["config.json", "tokenizer.json", "model.safetensors"];
    let mut files: Vec<(String, Vec<u8>)> = names
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), fs::read(hf.join(name)).ok()?)))
        .collect();
    files.push(("chat_template.jinja".to_owned(), FAILING_TEMPLATE.as_bytes().to_vec()));
    let hub = Hub::serve(
        vec![Repository { name: "user/folder", files }, smollm2(FAILING_TEMPLATE)],
        NO_FAULTS,
    );
    for name in ["user/folder", "smollm2:135m"] {
        let ran = with_hub(&folder, &hub, &["run", name, "hello", "-q"]);
        ran.fails("the template of this model");
    }
}

#[test]
fn a_download_that_is_cut_resumes_and_is_checked() {
    let folder = Folder::new("pull-cut");
    let faults = Faults { cut_responses: 3, ..NO_FAULTS };
    let hub = Hub::serve(vec![smollm2(TEMPLATE)], faults);
    with_hub(&folder, &hub, &["pull", "smollm2:135m"]).succeeds();
    let starts = hub.starts("SmolLM2-135M-Instruct-Q4_K_M.gguf");
    assert_eq!(starts.len(), 4);
    assert!(starts.is_sorted_by(|a, b| a < b), "{starts:?}");
    let file = "models/bartowski--SmolLM2-135M-Instruct-GGUF/SmolLM2-135M-Instruct-Q4_K_M.gguf";
    assert_eq!(fs::read(folder.path(file)).unwrap(), tiny_llm(TEMPLATE));
}

#[test]
fn a_hub_that_answers_otherwise_the_second_time_leads_nowhere() {
    let folder = Folder::new("pull-tags");
    let pull = |etags| {
        let hub = Hub::serve(vec![smollm2(TEMPLATE)], Faults { etags, ..NO_FAULTS });
        with_hub(&folder, &hub, &["pull", "smollm2:135m"])
    };
    pull(&["../../../../evil"]).fails("has a file `../../../../evil`");
    // The first answer is the one that counts.
    pull(&["good", "../../../../evil"]).succeeds();
    let mut folders = vec![folder.path("")];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap().map(Result::unwrap) {
            assert!(!entry.file_name().to_string_lossy().contains("evil"), "{entry:?}");
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            }
        }
    }
}

#[test]
fn a_download_resumes_in_another_process() {
    let folder = Folder::new("pull-again");
    let faults = Faults { cut_responses: 6, ..NO_FAULTS };
    let hub = Hub::serve(vec![smollm2(TEMPLATE)], faults);
    let pull = || with_hub(&folder, &hub, &["pull", "smollm2:135m"]);
    pull().fails("What arrived is kept: pull again");
    pull().succeeds();
    let starts = hub.starts("SmolLM2-135M-Instruct-Q4_K_M.gguf");
    assert!(starts.is_sorted_by(|a, b| a < b), "{starts:?}");
}

#[test]
fn failures_of_the_hub_are_one_line() {
    let folder = Folder::new("pull-failures");
    let pull = |faults: Faults| {
        let hub = Hub::serve(vec![whisper_base()], faults);
        with_hub(&folder, &hub, &["pull", "base"])
    };
    pull(Faults { wrong_checksum: true, ..NO_FAULTS }).fails("model.safetensors was damaged");
    for (status, expected) in [
        ("401 Unauthorized", "accept its licence on its page, and set HF_TOKEN"),
        ("403 Forbidden", "the access token has no right to it"),
    ] {
        pull(Faults { status: Some(status), ..NO_FAULTS }).fails(expected);
    }
    assert!(!folder.path("models/base").exists());
    // Bound and dropped: no server listens on the port.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = folder.command(&["pull", "base"]);
    let ran = finish(command.env("HF_ENDPOINT", format!("http://{address}")).spawn().unwrap());
    ran.fails("it cannot be reached");
    assert!(!ran.stderr.contains("What arrived"), "{ran:?}");
}

#[test]
fn every_listed_model_is_shown_and_removed_by_its_name() {
    let folder = Folder::new("models-listed");
    let golden = workspace().join("test-data/golden/llm");
    let llm = |name: &str| fs::read(golden.join(name)).unwrap();
    let whisper = TinyWhisper::default().gguf();
    let snapshot = "hub/models--cached--model/snapshots/c0ffee";
    let mut files = vec![
        ("models/speech.gguf".to_owned(), whisper.clone()),
        ("models/base/model.gguf".to_owned(), whisper),
        ("models/gemma.gguf".to_owned(), llm("gemma.gguf")),
        ("models/phi/model.gguf".to_owned(), llm("phi3.gguf")),
        ("models/mine/qwen.gguf".to_owned(), llm("qwen3.gguf")),
        ("models/u--r/m-Q4_K_M.gguf".to_owned(), llm("llama.gguf")),
        ("models/u--r/m-Q8_0.gguf".to_owned(), llm("mpt.gguf")),
        ("models/unsloth--Qwen3-0.6B-GGUF/Qwen3-0.6B-Q4_K_M.gguf".to_owned(), llm("qwen3.gguf")),
        ("hub/models--cached--gguf/snapshots/1/x-Q5_0.gguf".to_owned(), llm("bloom.gguf")),
        ("hub/models--other--program/snapshots/1/model.safetensors".to_owned(), b"no".to_vec()),
    ];
    for (repository, name) in [("models/u--hf", "qwen2-hf"), (snapshot, "llama-hf")] {
        for entry in fs::read_dir(golden.join(name)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            files.push((format!("{repository}/{name}"), fs::read(&path).unwrap()));
        }
    }
    for (name, bytes) in files {
        fs::create_dir_all(folder.path(&name).parent().unwrap()).unwrap();
        folder.write(&name, &bytes);
    }
    let run = |arguments: &[&str]| {
        let mut command = folder.command(arguments);
        finish(command.env("HF_HUB_CACHE", folder.path("hub")).spawn().unwrap())
    };
    let json: serde_json::Value =
        serde_json::from_str(run(&["models", "--json"]).succeeds()).unwrap();
    let models = json["models"].as_array().unwrap();
    let names: Vec<&str> = models.iter().map(|m| m["name"].as_str().unwrap()).collect();
    let own = [
        "base",
        "gemma",
        "mine/qwen",
        "phi",
        "qwen3:0.6b",
        "speech",
        "u/hf",
        "u/r:Q4_K_M",
        "u/r:Q8_0",
    ];
    assert_eq!(names, [&own[..], &["cached/gguf:Q5_0", "cached/model"]].concat());
    assert_eq!(models[0]["kind"], "speech");
    assert_eq!(models[1]["architecture"], "gemma");
    assert_eq!(models[4]["type"], "f16");
    let text = run(&["models"]);
    for name in &names {
        assert!(text.succeeds().lines().any(|line| line.starts_with(name)), "{name}: {text:?}");
        let shown: serde_json::Value =
            serde_json::from_str(run(&["show", name, "--json"]).succeeds()).unwrap();
        let model = models.iter().find(|m| m["name"] == **name).unwrap();
        assert_eq!(shown["path"], model["path"], "{name}");
        assert_eq!(shown["architecture"], model["architecture"], "{name}");
        assert!(run(&["show", name]).succeeds().contains("parameters"), "{name}");
    }
    for name in own {
        run(&["rm", name]).succeeds();
    }
    run(&["rm", "cached/model"]).fails("is not in the models folder");
    assert_eq!(folder.names("models"), Vec::<String>::new());
}

#[test]
fn models_of_another_folder_are_found() {
    let folder = Folder::new("models-dir");
    fs::create_dir(folder.path("elsewhere")).unwrap();
    folder.write("elsewhere/mine.gguf", &TinyWhisper::default().gguf());
    let shown = folder.run(&["--models-dir", "elsewhere", "show", "mine"]);
    assert!(shown.succeeds().starts_with("kind            speech"), "{shown:?}");
    folder.run(&["show", "mine", "--models-dir", "elsewhere"]).succeeds();
    folder.run(&["show", "mine"]).fails("no model `mine`");
    // Both variables are the flag: they win over the configuration file, the flag wins over them.
    folder.write("config.toml", b"models-dir = \"nowhere\"\n");
    for variable in ["STONECHAT_MODELS", "STONECHAT_MODELS_DIR"] {
        let with = |value: &str, more: &[&str]| {
            let arguments = [&["--config", "config.toml", "show", "mine"], more].concat();
            let mut command = folder.command(&arguments);
            finish(command.env(variable, value).spawn().unwrap())
        };
        with("elsewhere", &[]).succeeds();
        with("nowhere", &["--models-dir", "elsewhere"]).succeeds();
        with("nowhere", &[]).fails("no model `mine`");
    }
}
