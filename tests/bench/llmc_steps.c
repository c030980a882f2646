/* llmc_steps.c - steps of training by llm.c. train_speed.py puts this file in the place of
 * test_gpt2.c in a copy of its tree, so it is compiled by its Makefile, as its own programs are.
 *
 *   test_gpt2 CHECKPOINT TOKENS BATCH LENGTH STEPS
 *
 * TOKENS has int32_t [STEPS][BATCH][LENGTH + 1]. A step is what the main loop of train_gpt2.c does,
 * with the learning rates of train_speed.py; a line is printed for each. */
#define TESTING
#include "train_gpt2.c"

static void read_batch(FILE *file, int *inputs, int *targets, int batch, int length)
{
    for (int b = 0; b < batch; b++)
        for (int t = 0; t <= length; t++) {
            int token;
            freadCheck(&token, sizeof token, 1, file);
            if (t < length) inputs[b * length + t] = token;
            if (t > 0) targets[b * length + t - 1] = token;
        }
}

int main(int argc, char **argv)
{
    if (argc != 6) return 2;
    const int batch = atoi(argv[3]), length = atoi(argv[4]), steps = atoi(argv[5]);
    int *inputs = mallocCheck((size_t)(batch * length) * sizeof *inputs);
    int *targets = mallocCheck((size_t)(batch * length) * sizeof *targets);
    FILE *tokens = fopenCheck(argv[2], "rb");
    GPT2 model;
    gpt2_build_from_checkpoint(&model, argv[1]);
    for (int step = 0; step < steps; step++) {
        const float lr = 1e-3f * (float)(step < 2 ? step : 2) / 2;
        read_batch(tokens, inputs, targets, batch, length);
        gpt2_forward(&model, inputs, targets, (size_t)batch, (size_t)length);
        gpt2_zero_grad(&model);
        gpt2_backward(&model);
        gpt2_update(&model, lr, 0.9f, 0.95f, 1e-8f, 0.1f, step + 1);
        printf("step %d: train loss %.6f\n", step, model.mean_loss);
        fflush(stdout);
    }
    gpt2_free(&model);
    return 0;
}
