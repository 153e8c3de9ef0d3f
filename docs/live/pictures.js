// Conversion of drawings, files and frames of a camera to the bytes that the networks take, as in the Python module
// equivariant_transformers.demo.uploads.
"use strict";
(globalThis.etLive ??= {}).pictures = (() => {
  function pixelsOf(source, width, height, most) {
    const scale = Math.min(1, most / Math.max(width, height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(scale * width));
    canvas.height = Math.max(1, Math.round(scale * height));
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.imageSmoothingQuality = "high";
    context.drawImage(source, 0, 0, canvas.width, canvas.height);
    return context.getImageData(0, 0, canvas.width, canvas.height);
  }

  // Mean of the pixels that an output pixel covers, like Pillow's BOX filter: rounded to bytes after each direction.
  function shrunk(values, width, height, toWidth, toHeight) {
    const along = (read, size, toSize, lines) => {
      const scale = size / toSize, reach = 0.5 * Math.max(scale, 1);
      const result = new Uint8Array(toSize * lines);
      for (let to = 0; to < toSize; to++) {
        const centre = (to + 0.5) * scale;
        const covered = [];
        for (let from = Math.floor(centre - reach - 1); from <= centre + reach + 1; from++) {
          const distance = (from - centre + 0.5) / (2 * reach);
          if (from >= 0 && from < size && distance > -0.5 && distance <= 0.5) covered.push(from);
        }
        for (let line = 0; line < lines; line++) {
          let sum = 0;
          for (const from of covered) sum += read(from, line);
          result[line * toSize + to] = Math.round(sum / covered.length);
        }
      }
      return result;
    };
    const rows = along((x, y) => values[y * width + x], width, toWidth, height); // rows of toWidth
    const columns = along((y, x) => rows[y * toWidth + x], height, toHeight, toWidth); // columns of toHeight
    const result = new Uint8Array(toWidth * toHeight);
    for (let y = 0; y < toHeight; y++) {
      for (let x = 0; x < toWidth; x++) result[y * toWidth + x] = columns[x * toHeight + y];
    }
    return result;
  }

  // The centre of a picture as a square in three planes. The layer reads the largest circle in it.
  function toPhotograph({ data, width, height }, side) {
    const size = Math.min(width, height);
    const left = (width - size) >> 1, top = (height - size) >> 1;
    const planes = new Uint8Array(3 * side * side);
    for (let channel = 0; channel < 3; channel++) {
      const plane = new Uint8Array(size * size);
      for (let y = 0; y < size; y++) {
        for (let x = 0; x < size; x++) {
          const at = 4 * ((top + y) * width + left + x);
          plane[y * size + x] = Math.round((data[at + channel] * data[at + 3]) / 255);
        }
      }
      planes.set(shrunk(plane, size, size, side, side), channel * side * side);
    }
    return planes;
  }

  // White on black, 20 pixels long, centred by mass on 28 x 28 pixels, as in MNIST.
  function toDigit({ data, width, height }, side) {
    const grey = greyOf(data, width * height);
    const border = [];
    for (let x = 0; x < width; x++) border.push(grey[x], grey[(height - 1) * width + x]);
    for (let y = 0; y < height; y++) border.push(grey[y * width], grey[(y + 1) * width - 1]);
    border.sort((a, b) => a - b);
    const half = border.length / 2;
    const background = (border[Math.ceil(half) - 1] + border[Math.floor(half)]) / 2;
    const ink = Float64Array.from(grey, (value) => Math.max(0, background > 127 ? background - value : value - background));
    const most = ink.reduce((a, b) => Math.max(a, b), 0);
    if (most < 24) throw new Error("it has too little contrast");
    let left = width, right = -1, top = height, bottom = -1;
    ink.forEach((value, at) => {
      if (value <= 0.2 * most) return;
      const x = at % width, y = (at - x) / width;
      [left, right, top, bottom] = [Math.min(left, x), Math.max(right, x), Math.min(top, y), Math.max(bottom, y)];
    });
    const wide = right - left + 1, high = bottom - top + 1;
    const cropped = new Uint8Array(wide * high);
    for (let y = 0; y < high; y++) {
      for (let x = 0; x < wide; x++) {
        const value = ink[(top + y) * width + left + x];
        cropped[y * wide + x] = value > 0.2 * most ? Math.trunc((255 / most) * value) : 0;
      }
    }
    const scale = 20 / Math.max(wide, high);
    const [toWidth, toHeight] = [wide, high].map((length) => Math.max(1, Math.round(scale * length)));
    const small = shrunk(cropped, wide, high, toWidth, toHeight);
    const [x0, y0] = [[toWidth, (at) => at % toWidth], [toHeight, (at) => Math.floor(at / toWidth)]].map(([length, of]) => {
      let mass = 0, moment = 0;
      small.forEach((value, at) => { mass += value; moment += value * of(at); });
      return Math.min(Math.max(Math.round((side - 1) / 2 - moment / Math.max(1, mass)), 0), side - length);
    });
    const digit = new Uint8Array(side * side);
    small.forEach((value, at) => { digit[(y0 + Math.floor(at / toWidth)) * side + x0 + (at % toWidth)] = value; });
    return digit;
  }

  // Brightness; a transparent picture is put on white if it is dark, else on black.
  function greyOf(data, count) {
    const bright = (at) => (19595 * data[at] + 38470 * data[at + 1] + 7471 * data[at + 2] + 32768) >> 16;
    let seen = 0, sum = 0;
    for (let at = 0; at < 4 * count; at += 4) if (data[at + 3] > 127) { seen++; sum += bright(at); }
    const ground = seen < count && sum < 128 * seen ? 255 : 0;
    return Uint8Array.from({ length: count }, (_, place) => {
      const alpha = data[4 * place + 3] / 255;
      return Math.round(alpha * bright(4 * place) + (1 - alpha) * ground);
    });
  }

  return { pixelsOf, toDigit, toPhotograph };
})();
