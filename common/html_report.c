#include "common/html_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "common/command_line.h"
#include "common/file.h"
#include "common/version.h"

static const char page_begins[] = "<!DOCTYPE html>";

/* Creates a file beside the report, as file_replace_all() does: permissions
 * alone do not decide (root, read-only file systems). */
static enum status check_folder_writable(struct arena *a, const char *path, struct error *err)
{
    const char *folder = path_parent(a, path);
    if (!path_is_folder(folder))
        return fail(err, ERR_IO, "--report %s: its folder does not exist", path);
    char *temporary = path_join(a, folder, ".ferry-report-XXXXXX");
    int fd = mkstemp(temporary);
    if (fd < 0) return fail_errno(err, ERR_IO, "--report %s", path);
    close(fd);
    (void)unlink(temporary);
    return OK;
}

enum status html_report_check(const char *path, struct error *err)
{
    struct arena a;
    char head[sizeof page_begins] = "";
    if (!*path) return fail(err, ERR_USAGE, "--report: empty file name");
    arena_init(&a);
    enum status st = check_folder_writable(&a, path, err);
    arena_release(&a);
    TRY(st);
    if (!path_exists(path)) return OK;
    FILE *f = path_is_file(path) ? fopen(path, "re") : NULL;
    size_t n = f ? fread(head, 1, sizeof head - 1, f) : 0;
    if (f) fclose(f);
    if (n == strlen(page_begins) && memcmp(head, page_begins, n) == 0) return OK;
    return fail(err, ERR_EXISTS, "--report %s: exists and is not a report", path);
}

struct html_environment html_report_environment(struct arena *a)
{
    const char *command = command_line_text(a, NULL);
    struct utsname host;
    struct tm local;
    char now_text[64] = "";
    time_t now = time(NULL);
    if (localtime_r(&now, &local))
        strftime(now_text, sizeof now_text, "%Y-%m-%d %H:%M:%S %z", &local);
    bool known = uname(&host) == 0;
    return (struct html_environment){
        .version = ferry_version,
        .host = known ? arena_printf(a, "%s, %s %s, %s", host.nodename, host.sysname, host.release,
                                     host.machine)
                      : "",
        .time = arena_printf(a, "%s", now_text),
        .command = command ? command : "",
    };
}

enum status html_report_write(const char *path, const struct strbuf *page, struct error *err)
{
    return file_replace_all(path, page->data, page->length, false, err);
}
