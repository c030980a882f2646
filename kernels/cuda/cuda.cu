/* cuda.cu - the open device: its properties, and errors of CUDA as a status,
 * for all files of the folder. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"

cudaStream_t cuda_stream;
int cuda_capability;
int cuda_multiprocessors;
size_t cuda_shared_bytes;
struct sm90_kernels sm90_kernels; /* zeros before any constructor runs */

enum status cuda_status(const char *what, cudaError_t code, struct error *err)
{
    if (code == cudaSuccess) return OK;
    (void)cudaGetLastError(); /* reported here, not again by the next call */
    return fail(err, ERR_DEVICE, "%s: %s (%s)", what, cudaGetErrorString(code),
                cudaGetErrorName(code));
}

bool sm90_has_word(const char *word)
{
    const char *words = getenv("FERRY_CUDA_SM90");
    return words && strstr(words, word);
}

bool sm90_is_on(void)
{
    return cuda_capability == 90 && !sm90_has_word("0");
}
