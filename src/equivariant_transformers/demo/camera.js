// Samples to pick and a camera to take a picture with. Gradio runs this script once, after it has created the element.
const SIDE = 256; // pixels of the square that is sent
const video = element.querySelector("video");
const button = element.querySelector(".et-camera");
const samples = element.querySelectorAll(".et-sample");

function mark(chosen) {
  samples.forEach((sample) => sample.setAttribute("aria-pressed", String(sample === chosen)));
}

function stop() {
  if (video.srcObject) video.srcObject.getTracks().forEach((track) => track.stop());
  video.srcObject = null;
  video.hidden = true;
  button.textContent = "Webcam";
}

function take() {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = SIDE;
  const size = Math.min(video.videoWidth, video.videoHeight);
  const left = (video.videoWidth - size) / 2, top = (video.videoHeight - size) / 2;
  canvas.getContext("2d").drawImage(video, left, top, size, size, 0, 0, SIDE, SIDE);
  mark(null);
  trigger("snap", { png: canvas.toDataURL("image/png") });
}

button.addEventListener("click", async () => {
  if (video.srcObject) {
    if (video.videoWidth) take();
    stop();
    return;
  }
  try {
    video.srcObject = await navigator.mediaDevices.getUserMedia({ video: true });
    video.hidden = false;
    button.textContent = "Take the picture";
    await video.play();
  } catch (error) {
    stop();
    button.textContent = `No camera: ${error.message}`;
  }
});
samples.forEach((sample, index) => {
  sample.addEventListener("click", () => {
    mark(sample);
    trigger("pick", { index });
  });
});
