// Live demo: the networks of this page run in the browser, in ONNX Runtime Web. Scripts before this one define
// etLive["runtime.mjs"], ["runtime.wasm"], ["digits.onnx"], ["photographs.onnx"] (compressed, in base64), .settings and
// .pictures.
"use strict";
(() => {
  const root = document.getElementById("et-live");
  const live = globalThis.etLive;
  const part = (name) => root.querySelector(`[data-part="${name}"]`);
  const CLOCKWISE = -1; // a positive rotation turns the picture counterclockwise
  const MOST_BYTES = 10 * 2 ** 20;
  const MOST_PIXELS = 50e6;
  const TO_THETA = { rotation: (degrees) => (degrees * Math.PI) / 180, dilation: (factor) => -Math.log(factor) };
  const state = { mode: "digits", pictures: {}, sessions: {}, busy: false, stale: false, camera: null };

  // ---- Files -------------------------------------------------------------------------------------------------------

  async function unpacked(name) {
    const packed = await fetch(`data:application/octet-stream;base64,${live[name]}`);
    const stream = packed.body.pipeThrough(new DecompressionStream("gzip"));
    delete live[name];
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  async function load() {
    const module = new Blob([await unpacked("runtime.mjs")], { type: "text/javascript" });
    ort.env.wasm.wasmPaths = { mjs: URL.createObjectURL(module) };
    ort.env.wasm.wasmBinary = (await unpacked("runtime.wasm")).buffer;
    ort.env.wasm.numThreads = 1;
    for (const mode of ["digits", "photographs"]) {
      state.sessions[mode] = await ort.InferenceSession.create(await unpacked(`${mode}.onnx`));
    }
  }

  // ---- Pictures ----------------------------------------------------------------------------------------------------

  function take(source, width, height, mode = state.mode) {
    const { side } = live.settings[mode];
    const { pixelsOf, toDigit, toPhotograph } = live.pictures;
    const pixels = pixelsOf(source, width, height, mode === "digits" ? 512 : 1024);
    state.pictures[mode] = mode === "digits" ? toDigit(pixels, side) : toPhotograph(pixels, side);
    return update();
  }

  async function upload(file) {
    try {
      if (file.size > MOST_BYTES) throw new Error("it is larger than 10 MB");
      const picture = await createImageBitmap(file).catch(() => { throw new Error("it is not a picture that this browser reads"); });
      if (picture.width * picture.height > MOST_PIXELS) throw new Error("it has more than 50 million pixels");
      mark(null);
      await take(picture, picture.width, picture.height);
      if (state.mode === "digits") sketch(picture);
      say("");
    } catch (error) {
      say(`${file.name} cannot be used: ${error.message}.`);
    }
  }

  async function toggleCamera(button) {
    if (state.camera) {
      state.camera.getTracks().forEach((track) => track.stop());
      state.camera = null;
    } else {
      try {
        state.camera = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
      } catch (error) {
        say(`The camera cannot be used: ${error.message}.`);
        return;
      }
      mark(null);
      const video = document.createElement("video");
      Object.assign(video, { srcObject: state.camera, muted: true, playsInline: true });
      video.play().then(() => follow(video), () => {});
    }
    button.setAttribute("aria-pressed", String(state.camera !== null));
  }

  async function follow(video) {
    while (state.camera && video.srcObject === state.camera && state.mode === "photographs") {
      if (video.videoWidth) await take(video, video.videoWidth, video.videoHeight);
      await new Promise((resolve) => setTimeout(resolve, 30));
    }
  }

  // ---- Results -----------------------------------------------------------------------------------------------------

  const sliders = () => [...part("sliders").querySelectorAll("input")];

  function poseOf() {
    const thetas = {};
    for (const slider of sliders()) thetas[slider.name] = (TO_THETA[slider.name] ?? Number)(Number(slider.value));
    const most = live.settings[state.mode].perspective; // both perspectives share one range
    if (most) {
      const room = Math.max(0, most - Math.abs(thetas.x_perspective));
      thetas.y_perspective = Math.min(Math.max(thetas.y_perspective, -room), room);
    }
    return Float32Array.from(live.settings.order, (group) => thetas[group]);
  }

  // Run the network on the current picture and pose. Calls during a run cause one more run.
  async function update() {
    state.stale = true;
    if (state.busy) return;
    state.busy = true;
    while (state.stale) {
      state.stale = false;
      const { mode } = state;
      const { side, channels } = live.settings[mode];
      const source = state.pictures[mode], pose = poseOf();
      const found = await state.sessions[mode].run({
        source: new ort.Tensor("uint8", source, [1, channels, side, side]),
        pose: new ort.Tensor("float32", pose, [1, pose.length]),
      });
      if (mode !== state.mode) continue;
      const outputs = Object.fromEntries(Object.entries(found).map(([name, tensor]) => [name, tensor.data]));
      show(outputs);
      root.dispatchEvent(new CustomEvent("et-result", { bubbles: true, detail: { mode, source, pose, outputs } }));
    }
    state.busy = false;
  }

  function show(outputs) {
    paint(part("input"), outputs.distorted);
    paint(part("canonical"), outputs.canonical);
    const { layers, classes } = live.settings[state.mode];
    part("poses").replaceChildren(
      ...layers.map((layer, at) => {
        const turns = state.mode === "photographs";
        const pose = turns ? (outputs.predicted[at] * 180) / Math.PI : outputs.predicted[at];
        const number = (pose < 0 ? "−" : "+") + Math.abs(pose).toFixed(turns ? 0 : 2) + (turns ? "°" : "");
        return element("div", {}, element("dt", {}, layer), element("dd", {}, number));
      }),
    );
    if (!classes) return;
    for (const [name, shares] of [["with", outputs.shares], ["plain", outputs.plain_shares]]) {
      const best = shares.indexOf(Math.max(...shares));
      part(name).querySelector("output").textContent = `${classes[best]}, ${Math.round(100 * shares[best])} %`;
      part(name).querySelector("ol").replaceChildren(
        ...classes.map((label, at) => {
          const bar = element("li", { title: `${label}: ${(100 * shares[at]).toFixed(1)} %` }, element("i"), label);
          bar.firstChild.style.height = `${100 * shares[at]}%`;
          bar.classList.toggle("et-best", at === best);
          return bar;
        }),
      );
    }
  }

  function paint(canvas, values) {
    const { channels } = live.settings[state.mode];
    const count = values.length / channels;
    const side = Math.sqrt(count);
    const image = new ImageData(side, side);
    for (let at = 0; at < count; at++) {
      for (let channel = 0; channel < 3; channel++) image.data[4 * at + channel] = values[at + (channels === 3 ? channel * count : 0)];
      image.data[4 * at + 3] = 255;
    }
    canvas.width = canvas.height = side;
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  // ---- Controls ----------------------------------------------------------------------------------------------------

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  const say = (text) => { part("message").textContent = text; };

  function mark(chosen) {
    part("samples").querySelectorAll("button").forEach((button) => button.setAttribute("aria-pressed", String(button === chosen)));
  }

  async function setMode(mode) {
    if (state.camera) await toggleCamera(part("camera"));
    state.mode = root.dataset.mode = mode;
    const { sliders: given, names, samples, side, first } = live.settings[mode];
    part("sliders").replaceChildren(...given.map(control));
    const strip = new Image();
    strip.src = samples;
    await strip.decode();
    const cells = names.map((name, at) => {
      const cell = element("canvas", { width: side, height: side });
      cell.getContext("2d").drawImage(strip, -side * at, 0);
      const button = element("button", { type: "button", "aria-label": `Sample ${name}`, "aria-pressed": "false" }, cell);
      button.addEventListener("click", () => {
        mark(button);
        say("");
        if (mode === "digits") sketch(cell);
        const { data } = cell.getContext("2d").getImageData(0, 0, side, side);
        const channels = live.settings[mode].channels;
        state.pictures[mode] = Uint8Array.from({ length: channels * side * side }, (_, place) =>
          data[4 * (place % (side * side)) + Math.floor(place / (side * side))]);
        update();
      });
      return button;
    });
    part("samples").replaceChildren(...cells);
    cells[first].click();
  }

  function control({ group, label, min, max, step, value }) {
    const slider = element("input", { type: "range", name: group, min, max, step, value });
    const number = element("output", {}, slider.value);
    slider.addEventListener("input", () => { number.textContent = slider.value; update(); });
    return element("label", {}, element("span", {}, label, number), slider);
  }

  function setSlider(group, value) {
    const slider = sliders().find((each) => each.name === group);
    slider.value = value;
    slider.dispatchEvent(new Event("input"));
  }

  function turn(degrees) {
    const slider = sliders().find((each) => each.name === "rotation");
    setSlider("rotation", ((((Number(slider.value) + degrees + 180) % 360) + 360) % 360) - 180);
  }

  function makeTurnable(canvas) {
    let last = null;
    const angle = (event) => {
      const box = canvas.getBoundingClientRect();
      return (Math.atan2(event.clientY - box.top - box.height / 2, event.clientX - box.left - box.width / 2) * 180) / Math.PI;
    };
    canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); last = angle(event); });
    canvas.addEventListener("pointermove", (event) => {
      if (last === null) return;
      const moved = Math.round(((angle(event) - last + 540) % 360) - 180);
      if (moved) turn(CLOCKWISE * moved);
      last += moved;
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { last = null; });
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -5, ArrowRight: 5 }[event.key];
      if (!step) return;
      event.preventDefault();
      turn(CLOCKWISE * step);
    });
  }

  // The square to draw on.
  const paper = part("paper");
  const pen = paper.getContext("2d", { willReadFrequently: true });

  function clear() {
    pen.fillStyle = "black";
    pen.fillRect(0, 0, paper.width, paper.height);
  }

  function sketch(picture) {
    clear();
    const scale = Math.min(paper.width / picture.width, paper.height / picture.height);
    const [width, height] = [scale * picture.width, scale * picture.height];
    pen.drawImage(picture, (paper.width - width) / 2, (paper.height - height) / 2, width, height);
  }

  function makeDrawable() {
    let last = null;
    const stroke = (event) => {
      const box = paper.getBoundingClientRect();
      const next = [((event.clientX - box.left) / box.width) * paper.width, ((event.clientY - box.top) / box.height) * paper.height];
      Object.assign(pen, { strokeStyle: "white", lineWidth: paper.width / 12, lineCap: "round" });
      pen.beginPath();
      pen.moveTo(...(last ?? next));
      pen.lineTo(...next);
      pen.stroke();
      last = next;
    };
    paper.addEventListener("pointerdown", (event) => {
      paper.setPointerCapture(event.pointerId);
      if (part("samples").querySelector("[aria-pressed=true]")) clear();
      mark(null);
      stroke(event);
    });
    paper.addEventListener("pointermove", (event) => last && stroke(event));
    for (const end of ["pointerup", "pointercancel"]) {
      paper.addEventListener(end, () => {
        if (last) take(paper, paper.width, paper.height, "digits");
        last = null;
      });
    }
  }

  async function start() {
    if (live.missing || !live.settings) throw new Error(live.missing ?? "The files of the live demo could not be loaded.");
    await load();
    makeDrawable();
    makeTurnable(part("input"));
    part("clear").addEventListener("click", () => { clear(); mark(null); });
    part("upload").addEventListener("change", (event) => {
      if (event.target.files.length) upload(event.target.files[0]);
      event.target.value = "";
    });
    part("reset").addEventListener("click", () => {
      for (const { group, rest } of live.settings[state.mode].sliders) setSlider(group, rest);
    });
    part("camera").hidden = !navigator.mediaDevices;
    part("camera").addEventListener("click", (event) => toggleCamera(event.currentTarget));
    root.querySelectorAll("[name=et-mode]").forEach((radio) => radio.addEventListener("change", () => setMode(radio.value)));
    root.querySelector("[name=et-mode][value=digits]").checked = true;
    await setMode("digits");
    part("status").hidden = true;
    part("page").hidden = false;
  }

  start().catch((error) => {
    part("status").textContent = error.message;
    root.dataset.failed = "";
  });
})();
