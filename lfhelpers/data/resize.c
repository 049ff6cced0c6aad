/* Pillow's bilinear, antialiased resize of a box and its colour matrix, in its own arithmetic and hence to the last bit:
 * coefficients of 22 bits, one pass along rows and one along columns, rounded to 8 bits after each. Pillow goes pixel by
 * pixel; here as many go at a time as a register holds. Needs -ffp-contract=off, or coefficients and colours are rounded otherwise.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BITS 22
#define HALF (1 << (BITS - 1))
#if defined __AVX512F__
#define GROUP 4 /* pixels at a time along a row */
#elif defined __AVX2__
#define GROUP 2
#else
#define GROUP 1
#endif

typedef int32_t four __attribute__((vector_size(16)));        /* a pixel's channels */
typedef int32_t many __attribute__((vector_size(16 * GROUP))); /* those of a group */

/* How many coefficients an output has at most, rounded up to whole groups. */
static int taps_of(float low, float high, int size) {
    double scale = (double)(high - low) / size;
    return ((int)ceil(scale < 1 ? 1 : scale) * 2 + GROUP) / GROUP * GROUP;
}

/* For each output i: weights[i * taps + t] of input first[i] + t; zero where the filter has ended. */
static void weigh(int length, float low, float high, int size, int taps, int *first, int32_t *weights) {
    double scale = (double)(high - low) / size, stretch = scale < 1 ? 1 : scale, inverse = 1.0 / stretch;
    memset(weights, 0, sizeof *weights * size * taps);
    for (int i = 0; i < size; i++) {
        double centre = low + (i + 0.5) * scale, sum = 0, found[taps];
        int begin = (int)(centre - stretch + 0.5), end = (int)(centre + stretch + 0.5);
        begin = begin < 0 ? 0 : begin;
        end = end > length ? length : end;
        for (int x = begin; x < end; x++) {
            double distance = fabs((x - centre + 0.5) * inverse);
            sum += found[x - begin] = distance < 1 ? 1 - distance : 0;
        }
        first[i] = begin + taps > length ? length - taps : begin; /* the window stays inside the image */
        for (int x = begin; x < end; x++) {
            double share = sum != 0 ? found[x - begin] / sum : found[x - begin];
            weights[i * taps + x - first[i]] = (int32_t)(0.5 + share * (1 << BITS));
        }
    }
}

/* Sums to pixels. Bilinear weights are positive and add up to 1, so nothing leaves 0..255. */
static void rounded(const int32_t *sums, int count, uint8_t *out) {
    for (int i = 0; i < count; i++) out[i] = (uint8_t)(sums[i] >> BITS);
}

/* RGBX pixels, `width` of them, to `size`. weights: each of weigh's four times. wide, sums: room for int32 RGBX. */
static void along_row(const uint8_t *in, int width, const int *first, const many *weights, int taps, int size,
                      int32_t *wide, int32_t *sums, uint8_t *out) {
    for (int i = 0; i < 4 * width; i++) wide[i] = in[i];
    for (int i = 0; i < size; i++) {
        many sum = {HALF, HALF, HALF, HALF}; /* in the first pixel, and 0 in the others */
        for (int t = 0; t < taps; t += GROUP) {
            many pixels;
            memcpy(&pixels, wide + 4 * (first[i] + t), sizeof pixels);
            sum += pixels * *weights++;
        }
        four part[GROUP];
        memcpy(part, &sum, sizeof part);
        for (int g = 1; g < GROUP; g++) part[0] += part[g];
        memcpy(sums + 4 * i, part, sizeof *part);
    }
    rounded(sums, 4 * size, out);
}

/* `taps` rows of `count` numbers to one. */
static void along_columns(const uint8_t *in, const int32_t *weights, int taps, int count, int32_t *sums, uint8_t *out) {
    for (int i = 0; i < count; i++) sums[i] = HALF;
    for (int t = 0; t < taps; t++, in += count)
        if (weights[t])
            for (int i = 0; i < count; i++) sums[i] += in[i] * weights[t];
    rounded(sums, count, out);
}

/* RGBX to RGB, through a 3 x 4 matrix if there is one. planes: room for 4 x `size` floats. */
static void coloured(const uint8_t *in, const float *m, int size, float *planes, uint8_t *out) {
    if (!m) {
        for (int i = 0; i < size; i++)
            for (int c = 0; c < 3; c++) out[3 * i + c] = in[4 * i + c];
        return;
    }
    float *red = planes, *green = red + size, *blue = green + size, *value = blue + size;
    for (int i = 0; i < size; i++) red[i] = in[4 * i], green[i] = in[4 * i + 1], blue[i] = in[4 * i + 2];
    for (int c = 0; c < 3; c++, m += 4) {
        for (int i = 0; i < size; i++) {
            float sum = m[0] * red[i] + m[1] * green[i] + m[2] * blue[i] + m[3] + 0.5f;
            value[i] = sum < 0 ? 0 : sum > 255 ? 255 : sum;
        }
        for (int i = 0; i < size; i++) out[3 * i + c] = (uint8_t)(int32_t)value[i];
    }
}

/* frame: RGBX [height, width, 4]; box: left, top, right, bottom inside it; matrix: [3, 4] or NULL; out: [size, size, 3].
 * Returns 0; 1 where the frame is too small for the filter, 2 without memory. */
int resize(const uint8_t *frame, int width, int height, const float *box, const float *matrix, int size, uint8_t *out) {
    int across = taps_of(box[0], box[2], size), down = taps_of(box[1], box[3], size);
    if (across > width || down > height) return 1;
    size_t count = 4 * (size_t)size, status = 2;
    int *first = malloc(2 * size * sizeof *first);
    int32_t *weights = malloc(size * (size_t)(across + down) * sizeof *weights), *below = weights + (size_t)size * across;
    many *repeated = aligned_alloc(sizeof(many), (size_t)size * across / GROUP * sizeof(many));
    int32_t *wide = malloc(4 * (size_t)(width > size ? width : size) * sizeof *wide), *sums = malloc(count * sizeof *sums);
    uint8_t *rows = malloc((height + (size_t)1) * count), *line = rows + height * count;
    if (first && weights && repeated && wide && sums && rows) {
        weigh(width, box[0], box[2], size, across, first, weights);
        weigh(height, box[1], box[3], size, down, first + size, below);
        for (int i = 0; i < size * across; i++)
            for (int c = 0; c < 4; c++) repeated[i / GROUP][i % GROUP * 4 + c] = weights[i];
        int top = first[size], bottom = first[2 * size - 1] + down;
        for (int y = top; y < bottom; y++)
            along_row(frame + 4 * (size_t)width * y, width, first, repeated, across, size, wide, sums,
                      rows + count * (y - top));
        for (int y = 0; y < size; y++) {
            along_columns(rows + count * (first[size + y] - top), below + (size_t)down * y, down, count, sums, line);
            coloured(line, matrix, size, (float *)wide, out + 3 * (size_t)size * y);
        }
        status = 0;
    }
    free(first), free(weights), free(repeated), free(wide), free(sums), free(rows);
    return (int)status;
}
