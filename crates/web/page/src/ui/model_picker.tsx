// The models of the engine, with sizes and states; the choice of the engine.

import { useState } from "preact/hooks";

import { messageOf, type ModelEntry, type ModelKind } from "../engine";
import { formatBytes } from "../format";
import {
  cancelLoad, chooseEngine, chooseModel, engine, engines, isReady, languageModel, loading, loadModel, models, modelsError, refreshModels,
  removeModel, speechModel, unloadModel,
} from "../models";
import { notify } from "../notices";
import { Popover } from "./dialog";
import { Icon, IconButton } from "./icons";

const STATES = { loaded: "loaded", loading: "loading", unloaded: "not loaded", remote: "download", failed: "failed" } as const;

export function ModelPicker({ kind }: { kind: ModelKind }) {
  const model = (kind === "language" ? languageModel : speechModel).value;
  const name = model?.id ?? (isReady.value ? "No model" : "…");
  const progress = model && loading.value.has(model.id);
  return (
    <Popover
      label={`Model: ${name}`}
      class="model-picker"
      onOpen={() => void refreshModels()}
      button={
        <>
          <span class={`dot ${progress ? "loading" : (model?.state ?? "failed")}`} />
          <span class="model-name">{name}</span>
          <Icon name="down" />
        </>
      }
    >
      {(close) => <ModelList kind={kind} chosen={model?.id} onChosen={close} />}
    </Popover>
  );
}

function ModelList({ kind, chosen, onChosen }: { kind: ModelKind; chosen: string | undefined; onChosen: () => void }) {
  const list = models.value.filter((model) => model.kind === kind);
  return (
    <div class="model-list">
      {engines.value.length > 1 && <EngineSwitch />}
      {modelsError.value && <p class="error" role="alert">{modelsError.value}</p>}
      {list.length === 0 && !modelsError.value && <p class="empty">No {kind} models here.</p>}
      <ul>
        {list.map((model) => <ModelRow key={model.id} model={model} isChosen={model.id === chosen} onChosen={onChosen} />)}
      </ul>
      {engine.value?.add && <AddModel kind={kind} />}
    </div>
  );
}

export function EngineSwitch() {
  return (
    <div class="switch" role="group" aria-label="Engine">
      {engines.value.map((one) => (
        <button
          key={one.kind}
          type="button"
          aria-pressed={engine.value === one}
          onClick={() => void chooseEngine(one.kind)}
        >
          {one.name}
        </button>
      ))}
    </div>
  );
}

function ModelRow({ model, isChosen, onChosen }: { model: ModelEntry; isChosen: boolean; onChosen: () => void }) {
  const isLoading = loading.value.has(model.id);
  const progress = loading.value.get(model.id);
  const state = isLoading ? "loading" : model.state;
  const size = model.bytes ? formatBytes(model.bytes) : "";
  const detail = [size, model.detail, model.nCtx ? `${model.nCtx.toLocaleString()} ctx` : ""].filter(Boolean).join(" · ");
  const choose = () => {
    chooseModel(model);
    onChosen();
  };
  const load = () => {
    chooseModel(model);
    loadModel(model).catch(() => undefined);
  };
  return (
    <li class={isChosen ? "chosen" : ""}>
      <button type="button" class="model-row" aria-pressed={isChosen} onClick={choose}>
        <span class={`dot ${state}`} />
        <span class="model-text">
          <span class="model-name">{model.id}</span>
          <span class="detail">{detail}</span>
          {model.error && <span class="detail error">{model.error}</span>}
        </span>
        <span class="state">
          {isLoading && progress !== undefined ? `${Math.floor(progress * 100)} %` : STATES[state]}
        </span>
      </button>
      {isLoading && (
        <>
          <progress aria-label={`Loading ${model.id}`} max={1} value={progress} />
          <IconButton icon="close" label={`Cancel loading ${model.id}`} onClick={() => cancelLoad(model)} />
        </>
      )}
      {!isLoading && state === "loaded" && <button type="button" class="link" onClick={() => void unloadModel(model)}>Unload</button>}
      {!isLoading && state !== "loaded" && state !== "loading" && <button type="button" class="link" onClick={load}>Load</button>}
      {!isLoading && model.isCached && <IconButton icon="trash" label={`Delete ${model.id} from the cache`} onClick={() => void removeModel(model)} />}
    </li>
  );
}

/** Local files or an address, for the engine of this browser. */
function AddModel({ kind }: { kind: ModelKind }) {
  const [address, setAddress] = useState("");
  const add = (source: File[] | string) => {
    try {
      const id = engine.value?.add?.(kind, source);
      void refreshModels().then(() => {
        const model = models.value.find((one) => one.id === id);
        if (model) chooseModel(model);
      });
      setAddress("");
    } catch (error) {
      notify(messageOf(error), "error");
    }
  };
  return (
    <form
      class="add-model"
      onSubmit={(event) => {
        event.preventDefault();
        if (address.trim()) add(address.trim());
      }}
    >
      <label class="button">
        <Icon name="folder" />Open files
        <input
          type="file"
          multiple
          class="hidden"
          onChange={(event) => {
            const files = [...(event.currentTarget.files ?? [])];
            if (files.length > 0) add(files);
          }}
        />
      </label>
      <label>
        <span class="hidden">Address of a model</span>
        <input type="url" placeholder="or an address: https://…/model.gguf" value={address} onInput={(event) => setAddress(event.currentTarget.value)} />
      </label>
      <button type="submit" class="button" disabled={!address.trim()}>Add</button>
    </form>
  );
}
