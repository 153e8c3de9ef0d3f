// Canvas to draw on, with samples beside it. Gradio runs this script once, after it has created the element.
const canvas = element.querySelector("canvas");
const context = canvas.getContext("2d", { willReadFrequently: true });
let last = null;

function clear() {
  context.fillStyle = "black";
  context.fillRect(0, 0, canvas.width, canvas.height);
}

function show(url) {
  const picture = new Image();
  picture.onload = () => {
    clear();
    context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  };
  picture.src = url;
}

function mark(chosen) {
  element.querySelectorAll(".et-sample").forEach((button) => {
    button.setAttribute("aria-pressed", String(button === chosen));
  });
}

function place(event) {
  const box = canvas.getBoundingClientRect();
  return [
    ((event.clientX - box.left) / box.width) * canvas.width,
    ((event.clientY - box.top) / box.height) * canvas.height,
  ];
}

function stroke(event) {
  const next = place(event);
  context.strokeStyle = "white";
  context.lineWidth = canvas.width / 12;
  context.lineCap = "round";
  context.beginPath();
  context.moveTo(...(last || next));
  context.lineTo(...next);
  context.stroke();
  last = next;
}

canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  mark(null);
  stroke(event);
});
canvas.addEventListener("pointermove", (event) => last && stroke(event));
for (const end of ["pointerup", "pointercancel"]) {
  canvas.addEventListener(end, () => {
    if (!last) return;
    last = null;
    trigger("draw", { png: canvas.toDataURL("image/png") });
  });
}
element.querySelector(".et-clear").addEventListener("click", () => {
  clear();
  mark(null);
});
element.querySelectorAll(".et-sample").forEach((button, index) => {
  button.addEventListener("click", () => {
    mark(button);
    show(button.querySelector("img").src);
    trigger("pick", { index });
  });
});

watch("value", () => {  // set by the server after an upload
  if (props.value) {
    mark(null);
    show(props.value);
  }
});
show(props.value);
